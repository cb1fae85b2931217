package spare

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
)

func read[T any](t *testing.T, text string) T {
	t.Helper()
	var out T
	if err := yaml.UnmarshalStrict([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestFind: who gets one more pod, who is left alone and why, and who is not concerned.
func TestFind(t *testing.T) {
	const dns = "{metadata: {namespace: kube-system, name: dns}, spec: {replicas: %, template: {metadata: {labels: {app: dns}}, spec: {}}}}"
	with := func(n, spec string) string {
		return strings.Replace(strings.Replace(dns, "%", n, 1), "spec: {}", "spec: "+spec, 1)
	}
	const required = "{affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: " +
		"[{topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: dns}}}]}}}"
	const preferred = "{affinity: {podAntiAffinity: {preferredDuringSchedulingIgnoredDuringExecution: " +
		"[{weight: 1, podAffinityTerm: {topologyKey: kubernetes.io/hostname, labelSelector: {matchLabels: {app: dns}}}}]}}}"
	const scaler = "{metadata: {namespace: kube-system, name: dns-scaler}, spec: {replicas: 1, template: {spec: {containers: " +
		"[{name: a, command: [/cluster-proportional-autoscaler, '--target=Deployment/dns']}]}}}}"
	own := strings.Replace(with("3", "{}"), "name: dns}", "name: dns, annotations: {replumb.dev/one-more: m/2}}", 1)
	other := strings.Replace(with("2", "{}"), "name: dns}", "name: dns, annotations: {replumb.dev/one-more: other/1}}", 1)
	for _, tt := range []struct {
		name, deployment, beside, hpa string
		named                         []types.NamespacedName
		mode                          v1alpha1.PrepareMode
		gets                          bool
		alone                         string
	}{
		{name: "one pod", deployment: with("1", "{}"), gets: true},
		{name: "two pods", deployment: with("2", "{}"), gets: true},
		{name: "three pods are enough", deployment: with("3", "{}")},
		{name: "no pods", deployment: with("0", "{}")},
		{name: "disabled", deployment: with("1", "{}"), mode: v1alpha1.PrepareDisabled},
		{name: "has it already", deployment: own, gets: true},
		{name: "has it from another", deployment: other, alone: "migration other has given it one more pod"},
		{
			name: "scaled by a HorizontalPodAutoscaler", deployment: with("2", "{}"), alone: "HorizontalPodAutoscaler kube-system/h decides",
			hpa: "{metadata: {namespace: kube-system, name: h}, spec: {scaleTargetRef: {kind: Deployment, name: dns}}}",
		},
		{
			name: "another is scaled", deployment: with("2", "{}"), gets: true,
			hpa: "{metadata: {namespace: shop, name: h}, spec: {scaleTargetRef: {kind: Deployment, name: dns}}}",
		},
		{
			name: "scaled with the cluster", deployment: with("2", "{}"), beside: scaler,
			alone: "Deployment kube-system/dns-scaler (a cluster-proportional-autoscaler) decides",
		},
		{name: "no node for another", deployment: with("2", required), alone: "each of its pods takes a node of its own, and 2 can take them"},
		{name: "a node for another", deployment: with("1", required), gets: true},
		{name: "rather on nodes of their own", deployment: with("2", preferred), gets: true},
		{
			name: "a port of its node", deployment: with("2", "{containers: [{name: c, ports: [{containerPort: 53, hostPort: 53}]}]}"),
			alone: "each of its pods takes a node",
		},
		{
			name: "tolerates what the third has", gets: true,
			deployment: with("2", strings.Replace(required, "{affinity", "{tolerations: [{key: full, operator: Exists}], affinity", 1)),
		},
		{
			name: "CoreDNS, whatever its Service is called", gets: true,
			deployment: strings.Replace(with("2", "{}"), "labels: {app: dns}", "labels: {k8s-app: kube-dns}", 1),
		},
		{
			name: "named, with many", deployment: with("7", "{}"), gets: true,
			named: []types.NamespacedName{{Namespace: "kube-system", Name: "dns"}},
		},
		{
			name: "named, with none", deployment: with("0", "{}"), alone: "it has no pods",
			named: []types.NamespacedName{{Namespace: "kube-system", Name: "dns"}},
		},
		{
			name: "named, and not there", deployment: with("3", "{}"), alone: "it does not exist",
			named: []types.NamespacedName{{Namespace: "shop", Name: "web"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			scene := Inputs{
				Deployments: []appsv1.Deployment{read[appsv1.Deployment](t, tt.deployment)},
				Services: []corev1.Service{
					read[corev1.Service](t, "{metadata: {namespace: kube-system, name: kube-dns}, spec: {selector: {app: dns}}}"),
					read[corev1.Service](t, "{metadata: {namespace: kube-system, name: all}}"),
				},
			}
			for _, taint := range []string{"[]", "[]", "[{key: full, effect: NoSchedule}]"} {
				scene.Nodes = append(
					scene.Nodes,
					read[corev1.Node](t, "{spec: {taints: "+taint+"}, status: {conditions: [{type: Ready, status: 'True'}]}}"),
				)
			}
			if tt.beside != "" {
				scene.Deployments = append(scene.Deployments, read[appsv1.Deployment](t, tt.beside))
			}
			if tt.hpa != "" {
				scene.Scalers = append(scene.Scalers, read[autoscalingv2.HorizontalPodAutoscaler](t, tt.hpa))
			}
			mode := tt.mode
			if mode == "" {
				mode = v1alpha1.PrepareScale
			}
			f := Find(Spec{Migration: "m", Mode: mode, Deployments: tt.named}, scene)
			if got := f.Has(types.NamespacedName{Namespace: "kube-system", Name: "dns"}); got != tt.gets {
				t.Errorf("gets one more: %t, %+v", got, f)
			}
			said := ""
			for _, r := range f.results() {
				said += r.Message
			}
			if tt.alone == "" && said != "" || !strings.Contains(said, tt.alone) {
				t.Errorf("says %q, want %q", said, tt.alone)
			}
		})
	}
}

// TestUnseen: what may not be read is not taken for not being there.
func TestUnseen(t *testing.T) {
	f := Find(Spec{Mode: v1alpha1.PrepareScale}, Inputs{Unseen: []string{"horizontalpodautoscalers"}})
	got := f.results()
	if len(got) != 1 || got[0].Outcome != findings.Unknown || !strings.Contains(got[0].Message, "horizontalpodautoscalers") {
		t.Errorf("%+v", got)
	}
	if (*Found)(nil).results()[0].Outcome != findings.Skipped || (*Found)(nil).Has(types.NamespacedName{}) || (*Found)(nil).Up(nil) != nil {
		t.Error("nothing found is not nothing")
	}
}

// TestBack: only what this migration has changed, and no one since, is given back its number.
func TestBack(t *testing.T) {
	for n, want := range map[string]bool{"3": true, "5": false, "2": false} {
		d := read[appsv1.Deployment](t, "{metadata: {annotations: {replumb.dev/one-more: m/2}}, spec: {replicas: "+n+"}}")
		if _, scales := backPatch(&d, "m", nil)["spec"]; scales != want {
			t.Errorf("%s pods of 2: scaled back %t", n, scales)
		}
		if got := had(&d, "other"); got != "" {
			t.Errorf("another migration takes it for its own: %s", got)
		}
	}
	if all := Rights(); slices.ContainsFunc(all, func(r access.Right) bool { return r.Verb != "list" }) {
		t.Errorf("rights: %+v", all)
	}
}

// TestWanted: after an earlier run, a node may be drained, and the pod that was on it without room
// elsewhere.
func TestWanted(t *testing.T) {
	d := read[appsv1.Deployment](t, "{metadata: {annotations: {replumb.dev/one-more: m/2}}, spec: {replicas: 3}}")
	if first, later := wanted(&d, "m", false), wanted(&d, "m", true); first != 3 || later != 2 {
		t.Errorf("%d pods have to serve where this run gave one, %d where an earlier one did; want 3 and 2", first, later)
	}
	if other := wanted(&d, "other", true); other != 3 {
		t.Errorf("%d pods have to serve where another migration gave one, want 3", other)
	}
}
