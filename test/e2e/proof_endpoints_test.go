package e2e

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// testProofEndpoints has a kube-proxy stand still while apply restarts a workload whose pods do not leave their Services first. No Service
// moves then, and no endpoint of the Service that agents call on every node changes: what tells is the server that rolls beside others. The
// run stops with exit code 4, and names the node as one that learns late. The control restarts the same workload, by rollback, while every
// kube-proxy learns in time: nothing is lost, with the same agents at the same rate.
func testProofEndpoints(t *testing.T, l *lab.Lab) {
	const name, namespace, restart = "endpoints", "rolled", "restart/Deployment/rolled/"
	backIfFailed(t, l, name)
	echo := workload.Echo{Namespace: namespace, Name: "rolled", PartOf: "rolled", Replicas: 1}
	_, err := start(t.Context(), l, namespace, append([]runtime.Object{workload.Namespace(namespace)}, echo.Objects()...))
	must(t, err)
	t.Cleanup(func() { removeNamespaces(t, l, namespace) })
	kubectl(t, l, "rollout restart deployment/rolled -n rolled") // its pods may have been there before its Service
	kubectl(t, l, "rollout status deployment/rolled -n rolled --timeout=2m")
	file := writeSpec(t, name, `
  serviceCIDR:
    to: [%s]
    drain: 1s
    clusterServices: Stay
    refresh: {leaveFirst: None}
  batch: {size: 4, settle: 1s}
  image: %s
  proof: {agents: Enabled}
`, "172.22.0.0/16", workload.ReplumbImage)

	var resume func()
	events, exit, stderr := runWatching(t, applying(t, l, file), func(e engine.Event) {
		if resume == nil && eventOf(engine.StepStarted, restart)(e) {
			resume = stopProxy(t, l, "node1")
		}
	})
	t.Logf("apply while a kube-proxy stands still: exit %d: %s", exit, stderr)
	if resume == nil {
		t.Fatalf("%s… never began", restart)
	}
	if exit != 4 || !strings.Contains(stderr, "probe pod/single-") || !strings.Contains(stderr, "node node1 learns of endpoints late") {
		t.Fatalf("it ended with %d, not with 4, a probe of the server that rolls, and its node: %s", exit, stderr)
	}
	for _, e := range events {
		if e.Kind == engine.StepDone && e.Step == "agents/learned" {
			t.Error("every node had learned")
		}
	}
	resume()
	t.Log(replumb(t, l, "apply", "-f", file)) // it waits until every probe is answered again

	before := singleRolledAt(t, l)
	learned := false
	cmd := command(t, "replumb", "rollback", name, "--yes", "-o", "json", "--kubeconfig", l.Kubeconfig())
	_, exit, stderr = runWatching(t, cmd, func(e engine.Event) {
		learned = learned || e.Kind == engine.StepDone && e.Step == "agents/learned"
		if eventOf(engine.StepDone, restart)(e) && singleRolledAt(t, l) == before {
			t.Error("control: the server did not roll beside the workload")
		}
	})
	if exit != 0 || !learned {
		t.Errorf("control: while every kube-proxy learns in time it ended with %d, and every node had learned: %v: %s", exit, learned, stderr)
	}
	requireNoTrace(t, l)
}

// singleRolledAt is when the server with one endpoint was rolled last; empty, if it was not.
func singleRolledAt(t *testing.T, l *lab.Lab) string {
	t.Helper()
	d, err := l.Client().AppsV1().Deployments(v1alpha1.SystemNamespace).Get(t.Context(), agentset.Single, metav1.GetOptions{})
	must(t, err)
	return d.Spec.Template.Annotations[v1alpha1.AnnotationRestartedAt]
}
