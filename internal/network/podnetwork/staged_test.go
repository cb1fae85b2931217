package podnetwork

import (
	"encoding/json"
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

func TestStage(t *testing.T) {
	const plugin = "- {name: install-cni-plugin, command: [cp], args: [-f, /flannel, /opt/cni/bin/flannel]}\n"
	for _, tt := range []struct {
		name, before string
		network      v1alpha1.CNIName
		want         Staging // none is an error
		after        string
	}{
		{
			name: "Calico's manifest", network: v1alpha1.Calico,
			before: "- {name: upgrade-ipam, env: [{name: X, value: y}]}\n" +
				"- {name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist}, {name: SLEEP, value: 'false'}]}",
			want: Staging{"install-cni", "10-calico.conflist", "10-calico.conflist.replumb"},
			after: "- {name: upgrade-ipam, env: [{name: X, value: y}]}\n" +
				"- {name: install-cni, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}, {name: SLEEP, value: 'false'}]}",
		},
		{
			name: "Calico that goes by the usual name", network: v1alpha1.Calico,
			before: "- {name: install-cni, env: [{name: CNI_NETWORK_CONFIG, value: x}]}",
			want:   Staging{"install-cni", "10-calico.conflist", "10-calico.conflist.replumb"},
			after:  "- {name: install-cni, env: [{name: CNI_NETWORK_CONFIG, value: x}, {name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}]}",
		},
		{
			name: "flannel's manifest", network: v1alpha1.Flannel,
			before: plugin + "- {name: install-cni, command: [cp], args: [-f, /etc/kube-flannel/cni-conf.json, /etc/cni/net.d/10-flannel.conflist]}",
			want:   Staging{"install-cni", "10-flannel.conflist", "10-flannel.conflist.replumb"},
			after: plugin +
				"- {name: install-cni, command: [cp], args: [-f, /etc/kube-flannel/cni-conf.json, /etc/cni/net.d/10-flannel.conflist.replumb]}",
		},
		{
			name: "already staged", network: v1alpha1.Calico,
			before: "- {name: i, env: [{name: CNI_CONF_NAME, value: 10-calico.conflist.replumb}]}",
			want:   Staging{"i", "10-calico.conflist.replumb", "10-calico.conflist.replumb"},
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
			staged, got, err := Stage(set, tt.network)
			if got != tt.want || (err == nil) != (tt.want != Staging{}) {
				t.Fatalf("it is %+v, %v; want %+v", got, err, tt.want)
			}
			if !reflect.DeepEqual(set, aSet(t, tt.before)) {
				t.Errorf("it changed what it was given: %v", set)
			}
			if err != nil {
				return
			}
			if want := aSet(t, tt.after); !reflect.DeepEqual(staged, want) {
				t.Errorf("it is\n%v, want\n%v", staged, want)
			}
			if slices.Contains([]string{".conf", ".conflist", ".json"}, path.Ext(got.To)) {
				t.Errorf("runtimes load %s", got.To)
			}
		})
	}
}

// TestWhereMarked: a network's programs come to marked nodes alone, of those that they were let on
// before.
func TestWhereMarked(t *testing.T) {
	const marked = `{"key":"replumb.dev.node-restriction.kubernetes.io/network-beside","operator":"Exists"}`
	for _, tt := range []struct{ name, affinity, want string }{
		{
			"none", "",
			`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchExpressions":[` + marked + `]}]}}}`,
		},
		{
			"two terms, of which one is enough",
			`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` +
				`{"matchExpressions":[{"key":"a","operator":"Exists"}]},{"matchExpressions":[{"key":"b","operator":"Exists"}]}]}}}`,
			`{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[` +
				`{"matchExpressions":[{"key":"a","operator":"Exists"},` + marked + `]},` +
				`{"matchExpressions":[{"key":"b","operator":"Exists"},` + marked + `]}]}}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			set := &unstructured.Unstructured{Object: map[string]any{"kind": "DaemonSet", "spec": map[string]any{"template": map[string]any{
				"spec": map[string]any{},
			}}}}
			if tt.affinity != "" {
				var have map[string]any
				if err := json.Unmarshal([]byte(tt.affinity), &have); err != nil {
					t.Fatal(err)
				}
				set.Object["spec"].(map[string]any)["template"].(map[string]any)["spec"].(map[string]any)["affinity"] = have
			}
			was := set.DeepCopy()
			out, err := WhereMarked(set)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(set, was) {
				t.Errorf("the DaemonSet that was given is %v now", set.Object)
			}
			got, _, _ := unstructured.NestedMap(out.Object, "spec", "template", "spec", "affinity")
			body, err := json.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			if string(body) != tt.want {
				t.Errorf("the affinity is %s, want %s", body, tt.want)
			}
		})
	}
}

// TestOpened: a network that starts on every node is told from one that starts on marked nodes, and
// to become one restarts nothing.
func TestOpened(t *testing.T) {
	set := &unstructured.Unstructured{Object: map[string]any{"kind": "DaemonSet", "spec": map[string]any{
		"updateStrategy": map[string]any{"type": "RollingUpdate", "rollingUpdate": map[string]any{"maxUnavailable": int64(1)}},
		"template":       map[string]any{"spec": map[string]any{}},
	}}}
	open, err := KeepPods(set)
	if err != nil {
		t.Fatal(err)
	}
	closed, err := WhereMarked(open)
	if err != nil {
		t.Fatal(err)
	}
	if Marked(set) || Marked(open) || !Marked(closed) {
		t.Errorf("where marked: as it was %v, open %v, closed %v", Marked(set), Marked(open), Marked(closed))
	}
	for name, s := range map[string]*unstructured.Unstructured{"open": open, "closed": closed} {
		got, _, _ := unstructured.NestedMap(s.Object, "spec", "updateStrategy")
		if want := map[string]any{"type": "OnDelete"}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: it is updated by %v", name, got)
		}
	}
}
