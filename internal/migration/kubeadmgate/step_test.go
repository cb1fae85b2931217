package kubeadmgate

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/kube/pull"
)

func change() onnode.FlagChange {
	return onnode.FlagChange{Program: "kube-apiserver", From: map[string]string{"a": "1"}, To: map[string]string{"a": "2"}}
}

func flagStep(t *testing.T, c client.Client, change onnode.FlagChange) *step {
	t.Helper()
	s, ok := (&Gates{Migration: "m", Image: pull.Image{Name: "replumb"}, ByHand: "leave gates out"}).Flags("flags", "cp1", change).(*step)
	if !ok {
		t.Fatal("it is another step")
	}
	s.pod.Client, s.already, s.proof, s.before = c, nil, nil, nil
	return s
}

func pods(t *testing.T, c client.Client) []corev1.Pod {
	t.Helper()
	all := &corev1.PodList{}
	if err := c.List(t.Context(), all, client.InNamespace(v1alpha1.SystemNamespace)); err != nil {
		t.Fatal(err)
	}
	return all.Items
}

func end(t *testing.T, c client.Client, phase corev1.PodPhase, message string) {
	t.Helper()
	p := pods(t, c)[0]
	p.Status.Phase = phase
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{Message: message},
	}}}
	if err := c.Status().Update(t.Context(), &p); err != nil {
		t.Fatal(err)
	}
}

func newClient() client.Client {
	return fake.NewClientBuilder().WithStatusSubresource(&corev1.Pod{}).Build()
}

// TestAdoptsWhatWorks: a run that begins anew leaves a pod alone that another run has started, and
// never starts a second one beside it.
func TestAdoptsWhatWorks(t *testing.T) {
	c := newClient()
	if err := flagStep(t, c, change()).Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := pods(t, c)[0]
	first.Status.Phase = corev1.PodRunning
	if err := c.Status().Update(t.Context(), &first); err != nil {
		t.Fatal(err)
	}
	again := flagStep(t, c, change())
	if err := again.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	if all := pods(t, c); len(all) != 1 || all[0].Name != first.Name {
		t.Errorf("there are other pods: %v", all)
	}
	if err := again.Verify(t.Context()); !engine.Retryable(err) {
		t.Errorf("it is not waited for: %v", err)
	}
	if err := again.Abandon(t.Context()); err != nil || len(pods(t, c)) != 1 {
		t.Errorf("a pod was ended that may have renamed a file: %v", err)
	}
	back := change()
	back.From, back.To = back.To, back.From
	if err := flagStep(t, c, back).Do(t.Context()); !engine.Retryable(err) || len(pods(t, c)) != 1 {
		t.Errorf("the way back did not wait for it: %v", err)
	}
	end(t, c, corev1.PodSucceeded, "{}")
	if err := again.Verify(t.Context()); err != nil || len(pods(t, c)) != 0 {
		t.Errorf("the pod is left: %v", err)
	}
}

func TestFailedPodStopsTheRun(t *testing.T) {
	c := newClient()
	s := flagStep(t, c, change())
	if err := s.Do(t.Context()); err != nil {
		t.Fatal(err)
	}
	end(t, c, corev1.PodFailed, "error: no space left")
	err := s.Verify(t.Context())
	if err == nil || engine.Retryable(err) || !strings.Contains(err.Error(), "node cp1: no space left") ||
		!strings.Contains(fault.Advice(err), "nothing was begun on other nodes") || !strings.HasSuffix(fault.Advice(err), "leave gates out") || len(pods(t, c)) != 0 {
		t.Errorf("the error is %v, with the hint %q", err, fault.Advice(err))
	}
}

func TestOthersComeFirst(t *testing.T) {
	c := newClient()
	s := flagStep(t, c, change())
	s.before = func(context.Context) error { return errors.New("pod kube-apiserver-cp2 is not ready") }
	if err := s.Do(t.Context()); err == nil || len(pods(t, c)) != 0 {
		t.Errorf("it was begun: %v", err)
	}
}

// TestRightsOfPods: only one that restarts a kubelet is privileged, and one that looks writes
// nothing.
func TestRightsOfPods(t *testing.T) {
	g := &Gates{Migration: "m", ControlPlanes: []string{"cp1"}, Nodes: []string{"cp1"}}
	for name, c := range map[string]struct {
		step             engine.Step
		privileged, read bool
		mount            string
	}{
		"flags":   {g.Flags("flags", "cp1", change()), false, false, "/host/etc/kubernetes"},
		"kubelet": {g.Kubelet("cp1", []string{"a"}, []string{"b"}, nil), true, false, "/host"},
		"look":    {g.Examine(Expected{Flags: []onnode.FlagChange{change()}})[0].Steps[0], false, true, "/host/etc/kubernetes"},
		"forget":  {g.Forget(false)[0].Steps[0], false, false, "/host/etc/kubernetes"},
	} {
		spec := c.step.(*step).spec()
		container := spec.Containers[0]
		privileged := container.SecurityContext.Privileged != nil && *container.SecurityContext.Privileged
		m := container.VolumeMounts[0]
		if privileged != c.privileged || m.ReadOnly != c.read || m.MountPath != c.mount || len(container.VolumeMounts) != 1 ||
			*spec.AutomountServiceAccountToken || !spec.HostPID {
			t.Errorf("%s: privileged %v, %+v", name, privileged, m)
		}
	}
}
