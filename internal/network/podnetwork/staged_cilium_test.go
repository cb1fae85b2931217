package podnetwork

import (
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

func anObject(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	o := map[string]any{}
	if err := yaml.Unmarshal([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	return &unstructured.Unstructured{Object: o}
}

func TestStageCilium(t *testing.T) {
	const config, staged = `{kind: ConfigMap, metadata: {name: cilium-config}, data: {`,
		`write-cni-conf-when-ready: /host/etc/cni/net.d/05-cilium.conflist.replumb, cni-exclusive: "false", enable-policy: never, ` +
			`unmanaged-pod-watcher-interval: "0", enable-host-legacy-routing: "true", set-cilium-node-taints: "false"`
	for _, tt := range []struct{ name, before, after string }{
		{
			"its ConfigMap", config + `ipam: cluster-pool, cni-exclusive: "true", write-cni-conf-when-ready: /host/etc/cni/net.d/05-cilium.conflist}}`,
			config + "ipam: cluster-pool, " + staged + "}}",
		},
		{
			"in place of kube-proxy", config + `write-cni-conf-when-ready: /host/etc/cni/net.d/05-cilium.conflist, kube-proxy-replacement: "true"}}`,
			config + staged + `, kube-proxy-replacement: "false"}}`,
		},
		{"staged already", config + staged + "}}", config + staged + "}}"},
		{"nowhere to write", config + "ipam: cluster-pool}}", ""},
		{"a directory", config + "write-cni-conf-when-ready: /}}", ""},
		{"another ConfigMap", `{kind: ConfigMap, metadata: {name: other}, data: {a: b}}`, `{kind: ConfigMap, metadata: {name: other}, data: {a: b}}`},
		{
			"agents", "{kind: DaemonSet, metadata: {name: cilium}, spec: {template: {metadata: {labels: {a: b}}}}}",
			`{kind: DaemonSet, metadata: {name: cilium}, spec: {template: {metadata: {labels: {a: b}, annotations: {replumb.dev/beside: "true"}}}}}`,
		},
		{
			"the operator", "{kind: Deployment, metadata: {name: cilium-operator}, spec: {template: {metadata: {annotations: {c: d}}}}}",
			`{kind: Deployment, metadata: {name: cilium-operator}, spec: {template: {metadata: {annotations: {c: d, replumb.dev/beside: "true"}}}}}`,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := anObject(t, tt.before)
			got, err := StageCilium(o)
			if !reflect.DeepEqual(o, anObject(t, tt.before)) {
				t.Errorf("it changed what it was given: %v", o)
			}
			if (err != nil) != (tt.after == "") {
				t.Fatalf("%v, %v", got, err)
			}
			if err == nil && !reflect.DeepEqual(got, anObject(t, tt.after)) {
				t.Errorf("it is\n%v, want\n%v", got, anObject(t, tt.after))
			}
		})
	}
}
