package podnetwork

import (
	"path"
	"reflect"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
)

// aSet is a DaemonSet with init containers, written as YAML.
func aSet(t *testing.T, containers string) *unstructured.Unstructured {
	t.Helper()
	var all []any
	if err := yaml.Unmarshal([]byte(containers), &all); err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": map[string]any{"namespace": "kube-system", "name": "net"},
		"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"initContainers": all}}},
	}}
}

func TestPark(t *testing.T) {
	const plugin = "- {name: install-cni-plugin, command: [cp], args: [-f, /flannel, /opt/cni/bin/flannel]}\n"
	for _, tt := range []struct {
		name, before string
		network      v1alpha1.CNIName
		want         Parking // none is an error
		after        string
	}{
		{
			name: "Calico's manifest", network: v1alpha1.Calico,
			before: "- {name: upgrade-ipam, env: [{name: X, value: y}]}\n" +
				"- {name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}, {name: SLEEP, value: 'false'}]}",
			want: Parking{"install-cni", "10-calico.conflist", "10-calico.conflist.replumb"},
			after: "- {name: upgrade-ipam, env: [{name: X, value: y}]}\n" +
				"- {name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}, {name: SLEEP, value: 'false'}]}",
		},
		{
			name: "Calico that goes by the usual name", network: v1alpha1.Calico,
			before: "- {name: install-cni, env: [{name: CNI_NETWORK_CONFIG, value: x}]}",
			want:   Parking{"install-cni", "10-calico.conflist", "10-calico.conflist.replumb"},
			after:  "- {name: install-cni, env: [{name: CNI_NETWORK_CONFIG, value: x}, {name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}]}",
		},
		{
			name: "flannel's manifest", network: v1alpha1.Flannel,
			before: plugin + "- {name: install-cni, command: [cp], args: [-f, /etc/kube-flannel/cni-conf.json, /etc/cni/net.d/10-flannel.conflist]}",
			want:   Parking{"install-cni", "10-flannel.conflist", "10-flannel.conflist.replumb"},
			after: plugin +
				"- {name: install-cni, command: [cp], args: [-f, /etc/kube-flannel/cni-conf.json, /etc/cni/net.d/10-flannel.conflist.replumb]}",
		},
		{
			name: "already parked", network: v1alpha1.Calico,
			before: "- {name: i, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}]}",
			want:   Parking{"i", "10-calico.conflist.replumb", "10-calico.conflist.replumb"},
			after:  "- {name: i, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}]}",
		},
		{name: "a name from elsewhere", network: v1alpha1.Calico, before: "- {name: i, env: [{name: CNI_CONF_NAME, valueFrom: {}}]}"},
		{name: "no installer", network: v1alpha1.Flannel, before: plugin},
		{
			name: "two installers", network: v1alpha1.Flannel,
			before: "- {name: a, args: [/etc/cni/net.d/1.conflist]}\n- {name: b, args: [/etc/cni/net.d/2.conflist]}",
		},
		{name: "a network that is not known", network: v1alpha1.Cilium, before: plugin},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := aSet(t, tt.before)
			parked, got, err := Park(set, tt.network)
			if got != tt.want || (err == nil) != (tt.want != Parking{}) {
				t.Fatalf("it is %+v, %v; want %+v", got, err, tt.want)
			}
			if !reflect.DeepEqual(set, aSet(t, tt.before)) {
				t.Errorf("it changed what it was given: %v", set)
			}
			if err != nil {
				return
			}
			if want := aSet(t, tt.after); !reflect.DeepEqual(parked, want) {
				t.Errorf("it is\n%v, want\n%v", parked, want)
			}
			if slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(got.To)) {
				t.Errorf("runtimes load %s", got.To)
			}
		})
	}
}
