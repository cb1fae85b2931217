package e2e

import (
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
)

// testProofTrouble has agents that do not come up, or that come to grief. Each time nothing moves, or nothing more does; one line says
// which node and why; and the same command goes on when the cause is gone, which is the control of each.
func testProofTrouble(t *testing.T, l *lab.Lab) {
	if _, err := openShop(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	t.Run("no image", func(t *testing.T) { noImage(t, l) })
	t.Run("refused", func(t *testing.T) { refused(t, l) })
	t.Run("killed", func(t *testing.T) { killedAgent(t, l) })
	t.Run("killed while called", func(t *testing.T) { killedServer(t, l) })
}

// noImage names an image that does not exist, and one whose registry does not answer.
func noImage(t *testing.T, l *lab.Lab) {
	backIfFailed(t, l, "imageless")
	before := allServices(t, l)
	const name, refused = "imageless", "127.0.0.1:1/none:lab"
	bad := proven{name: name, to: "172.21.0.0/16", image: refused, wait: "20s"}.write(t)
	requireNoAgents(t, l, bad, "node node1: pod agent-", "has no image "+refused+": ", "ImagePull", "spec.image")
	after := allServices(t, l)
	delete(after, v1alpha1.SystemNamespace+"/probe")
	requireSame(t, before, after)
	requireUnlocked(t, l, name)

	good := proven{name: name, to: "172.21.0.0/16"}.write(t)
	replumb(t, l, "apply", "-f", good, "--until", "agents")

	// Without agents one can still go back.
	const nowhere = "replumb.local/none:lab"
	bad = proven{name: name, to: "172.21.0.0/16", image: nowhere, wait: "20s"}.write(t)
	requireNoAgents(t, l, bad, "node node1: pod agent-", "has no image "+nowhere, "spec.image")
	began := time.Now()
	replumb(t, l, "rollback", name, "--yes")
	t.Logf("rolled back in %s without an agent", time.Since(began).Round(time.Second))
	requireSame(t, before, allServices(t, l))
	requireNoTrace(t, l)
}

// backIfFailed rolls a migration back when a test has failed in the middle of it, so that it is not in the way of the next.
func backIfFailed(t *testing.T, l *lab.Lab, migration string) {
	t.Helper()
	replumb := filepath.Join(binaries(t), "replumb")
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		ctx := context.WithoutCancel(t.Context())
		out, err := exec.CommandContext(ctx, replumb, "rollback", migration, "--yes", "--kubeconfig", l.Kubeconfig()).CombinedOutput()
		t.Logf("rolling %s back: %v: %s", migration, err, out)
	})
}

// requireNoAgents fails the test unless apply ends with an error that has all of these in its one line, and the last in its hint.
func requireNoAgents(t *testing.T, l *lab.Lab, file string, parts ...string) {
	t.Helper()
	events, exit, stderr := runWatching(t, applying(t, l, file), func(engine.Event) {})
	line, hint := lineWith(stderr, "error:"), lineWith(stderr, "hint:")
	t.Logf("exit %d\n%s\n%s", exit, line, hint)
	if exit != 1 || line == "" {
		t.Fatalf("it ended with %d: %s", exit, stderr)
	}
	last := len(parts) - 1
	for _, part := range parts[:last] {
		if !strings.Contains(line, part) {
			t.Errorf("%q is not in: %s", part, line)
		}
	}
	if !strings.Contains(hint, parts[last]) {
		t.Errorf("%q is not in: %s", parts[last], hint)
	}
	for _, e := range events {
		if e.Kind == engine.StepStarted && (strings.HasPrefix(e.Step, "hop/") || strings.HasPrefix(e.Step, "bridge/")) {
			t.Errorf("%s began without agents", e.Step)
		}
	}
}

// refused has others keep the pods of agents out: a quota, and a policy. What Pod Security would refuse, replumb lets in itself.
func refused(t *testing.T, l *lab.Lab) {
	backIfFailed(t, l, "refused")
	file := proven{name: "refused", to: "172.21.0.0/16", wait: "20s"}.write(t)
	replumb(t, l, "apply", "-f", file, "--until", "secure")
	quotas := l.Client().CoreV1().ResourceQuotas(v1alpha1.SystemNamespace)
	if _, err := quotas.Create(t.Context(), &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: "no-pods"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, settled, func() error { // it counts once its controller has looked
		q, err := quotas.Get(t.Context(), "no-pods", metav1.GetOptions{})
		if err == nil && q.Status.Hard == nil {
			err = errors.New("the quota has not been looked at")
		}
		return err
	})
	requireNoAgents(t, l, file, "node node1: there is no pod of daemonset replumb-system/agent", "exceeded quota: no-pods", "quota")
	must(t, quotas.Delete(t.Context(), "no-pods", metav1.DeleteOptions{}))

	lift := forbidPods(t, l)
	replumb(t, l, "rollback", "refused", "--yes") // an end to the pods there may be by now; new ones are refused
	requireNoAgents(t, l, file, "node node1: there is no pod of daemonset replumb-system/agent", "no pods of agents here", "daemonset")
	lift()

	strict := []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	spaces := l.Client().CoreV1().Namespaces()
	if _, err := spaces.Patch(t.Context(), v1alpha1.SystemNamespace, types.MergePatchType, strict, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// Who makes the pods of DaemonSets has been refused often by now, and takes its time to try again.
	patient := proven{name: "refused", to: "172.21.0.0/16"}.write(t)
	replumb(t, l, "apply", "-f", patient, "--until", "agents")
	replumb(t, l, "rollback", "refused", "--yes")
	requireNoTrace(t, l)
}

// forbidPods has the API server refuse pods in replumb's namespace, until it is lifted.
func forbidPods(t *testing.T, l *lab.Lab) (lift func()) {
	t.Helper()
	const name = "no-agents"
	api := l.Client().AdmissionregistrationV1()
	if _, err := api.ValidatingAdmissionPolicies().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			FailurePolicy: ptr.To(admissionv1.Fail),
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
				},
			}}},
			Validations: []admissionv1.Validation{
				{
					Expression: "!(request.namespace in ['" + v1alpha1.SystemNamespace + "', 'kube-public'])",
					Message:    "no pods of agents here",
				},
			},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	lifted := false
	lift = func() {
		if lifted {
			return
		}
		lifted = true
		ctx := t.Context()
		if ctx.Err() != nil {
			return // the lab goes anyway
		}
		if err := api.ValidatingAdmissionPolicyBindings().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := api.ValidatingAdmissionPolicies().Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		eventually(t, settled, func() error {
			if err := tryPod(t, l); apierrors.IsForbidden(err) {
				return err
			}
			return nil
		})
	}
	if _, err := api.ValidatingAdmissionPolicyBindings().Create(t.Context(), &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, settled, func() error { // it takes the API server a moment
		if err := tryPod(t, l); err == nil || !strings.Contains(err.Error(), "no pods of agents here") {
			return errors.New("pods are let in")
		}
		return nil
	})
	return lift
}

// tryPod asks whether a pod would be let in.
func tryPod(t *testing.T, l *lab.Lab) error {
	t.Helper()
	_, err := l.Client().CoreV1().Pods("kube-public").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "let-in"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "none", Image: "none.example/none"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

// killedAgent kills the agent of a node while the node's kube-proxy stands still: the one that comes after it does not take over what the
// one before has said. Then the agents lose their rights.
func killedAgent(t *testing.T, l *lab.Lab) {
	s, _ := lightTraffic(t, l)
	backIfFailed(t, l, "killed-agent")
	file := proven{name: "killed-agent", to: "172.21.0.0/16", drain: "5s", wait: "30s"}.write(t)
	k := &killing{T: t, l: l}
	lived := s.during(t, "a move whose agents come to grief", func() {
		_, exit, stderr := runWatching(t, applying(t, l, file), k.see)
		t.Logf("apply with an agent killed, and then without rights: exit %d: %s", exit, stderr)
		if !k.waited {
			t.Error("the run did not wait for the node whose agent was killed and whose kube-proxy stood still")
		}
		requireSilent(t, exit, stderr, "node")
		if line := lineWith(stderr, "error:"); !strings.Contains(line, "ClusterRoleBinding replumb-agent is missing") {
			t.Errorf("what is missing is not named: %s", line)
		}
		replumb(t, l, "apply", "-f", file)
	})
	lived.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, "172.21.0.0/16")
	s.finish(t, l, "killed-agent")
}

type killing struct {
	*testing.T
	l              *lab.Lab
	resume         func()
	waited, robbed bool
}

func (k *killing) see(e engine.Event) {
	k.Helper()
	switch {
	case e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/batch 1 ") && k.resume == nil:
		k.resume = stopProxy(k.T, k.l, "node1")
		must(k, unix.Kill(agentProcess(k.T, k.l, "node1", v1alpha1.RoleAgent), unix.SIGKILL))
	case waitsFor(e, "node1") && !k.waited:
		k.waited = true
		eventually(k.T, settled, func() error {
			for _, c := range agentPod(k.T, k.l, "node1", v1alpha1.RoleAgent).Status.ContainerStatuses {
				if c.RestartCount > 0 && c.State.Running != nil {
					return nil
				}
			}
			return errors.New("the agent has not been started again")
		})
		k.resume()
	case e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/batch 3 ") && !k.robbed:
		k.robbed = true
		err := k.l.Client().RbacV1().ClusterRoleBindings().Delete(k.Context(), "replumb-agent", metav1.DeleteOptions{})
		must(k, err)
	}
}

// killedServer kills the agent in the network of pods on one node, which all agents call. What they lose by that is reported as what it is.
func killedServer(t *testing.T, l *lab.Lab) {
	s, _ := lightTraffic(t, l)
	backIfFailed(t, l, "killed-server")
	file := proven{name: "killed-server", to: "172.19.0.0/16", drain: "5s"}.write(t)
	killed := false
	lived := s.during(t, "a move whose agents' server is killed", func() {
		_, exit, stderr := runWatching(t, applying(t, l, file), func(e engine.Event) {
			if e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "settle/batch 1 ") && !killed {
				killed = true
				must(t, unix.Kill(agentProcess(t, l, "node2", v1alpha1.RoleProbe), unix.SIGKILL))
			}
		})
		t.Logf("apply with the agent killed that is called: exit %d: %s", exit, stderr)
		line := lineWith(stderr, "error:")
		if exit != 1 || !strings.Contains(line, "an agent ended that others called") || !strings.Contains(line, "node node2: pod probe-") {
			t.Fatalf("it ended with %d", exit)
		}
		replumb(t, l, "apply", "-f", file)
	})
	lived.requireNothingLost(t, traffic.All)
	requireAllIn(t, l, "172.19.0.0/16")
	s.finish(t, l, "killed-server")
}

// finish ends the clients of a shop, and then a migration: nothing is left of it.
func (s *shop) finish(t *testing.T, l *lab.Lab, migration string) {
	t.Helper()
	s.watch.Stop()
	removeClients(t, l, shopNamespace)
	replumb(t, l, "finish", migration, "--yes")
	requireNoTrace(t, l)
}
