package podnetwork

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/yaml"
)

// TestKeepOff: what is remembered of an affinity is exactly what it was, and each term that let a
// pod onto a node has the condition.
func TestKeepOff(t *testing.T) {
	const condition = `{key: replumb.dev.node-restriction.kubernetes.io/kube-proxy, operator: NotIn, values: [leaving, replaced]}`
	required := func(terms string) string {
		return `{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: ` + terms + `}}}`
	}
	for _, tt := range []struct{ name, was, want string }{
		{"none", `null`, required(`[{matchExpressions: [` + condition + `]}]`)},
		{"empty", `{}`, required(`[{matchExpressions: [` + condition + `]}]`)},
		{
			"others", `{podAntiAffinity: {}, nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {}}]}}`,
			`{podAntiAffinity: {}, nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {}}], ` +
				`requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [` + condition + `]}]}}}`,
		},
		{
			"two terms", required(`[{matchExpressions: [{key: a, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [b]}]}]`),
			required(`[{matchExpressions: [{key: a, operator: Exists}, ` + condition + `]}, ` +
				`{matchFields: [{key: metadata.name, operator: In, values: [b]}], matchExpressions: [` + condition + `]}]`),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := func(text string) *corev1.Affinity {
				var a *corev1.Affinity
				if err := yaml.Unmarshal([]byte(text), &a); err != nil {
					t.Fatal(err)
				}
				return a
			}
			was := read(tt.was)
			text, err := Remembered(was)
			if err != nil {
				t.Fatal(err)
			}
			if got := KeepOff(was); !equality.Semantic.DeepEqual(got, read(tt.want)) {
				t.Errorf("it is %+v", got)
			}
			back, err := Recall(text)
			if err != nil || !reflect.DeepEqual(back, read(tt.was)) {
				t.Errorf("%s came back as %+v, %v", text, back, err)
			}
		})
	}
	if _, err := Recall("{"); err == nil {
		t.Error("half of one was read")
	}
}

// TestReplaceProxy: kube-proxy's address for its health is Cilium's only on nodes without
// kube-proxy.
func TestReplaceProxy(t *testing.T) {
	const one = `{apiVersion: cilium.io/v2, kind: CiliumNodeConfig, metadata: {namespace: kube-system, name: replumb-kube-proxy}, spec: {` +
		`defaults: {kube-proxy-replacement: "true", kube-proxy-replacement-healthz-bind-address: ""}, nodeSelector: {matchExpressions: [{` +
		`key: replumb.dev.node-restriction.kubernetes.io/kube-proxy, operator: In, values: [beside, leaving, replaced]}]}}}`
	const two = `{apiVersion: cilium.io/v2, kind: CiliumNodeConfig, metadata: {namespace: kube-system, name: replumb-kube-proxy-healthz}, spec: {` +
		`defaults: {kube-proxy-replacement-healthz-bind-address: "0.0.0.0:10256"}, nodeSelector: {matchExpressions: [{` +
		`key: replumb.dev.node-restriction.kubernetes.io/kube-proxy, operator: In, values: [leaving, replaced]}]}}}`
	for health, want := range map[string][]string{"": {one}, "0.0.0.0:10256": {one, two}} {
		got := ReplaceProxy("kube-system", health)
		if len(got) != len(want) {
			t.Fatalf("%q: %v", health, got)
		}
		for i, text := range want {
			if !reflect.DeepEqual(got[i], anObject(t, text)) {
				t.Errorf("%q: it is\n%v, want\n%v", health, got[i], anObject(t, text))
			}
		}
	}
}
