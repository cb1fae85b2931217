//go:build apiserver && long

package cni

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// TestHintIsFollowed does what the error says about a source that is no client: in the migration
// that was stopped.
func TestHintIsFollowed(t *testing.T) {
	f := setup(t)
	f.clients = []string{"203.0.113.5"}
	f.Fails(f.forward(), "serves clients from outside: 203.0.113.5")
	m := sample(f.dir)
	m.Spec.CNI.Traffic.Ignore = []string{"203.0.113.5/32"}
	f.with(m)
	f.Fails(f.forward(), "RP5008: ") // whether they are clients is not known
	f.clients = nil                  // as the agents see it now
	m.Spec.CNI.Vouch.Quiet = []string{"203.0.113.0/24"}
	f.with(m)
	f.Must(f.forward())
}

func TestWorseIsToldAndStaysReversible(t *testing.T) {
	f := setup(t)
	take := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		take(e)
		if e.Step == "begin" && e.Kind == engine.StepDone {
			f.Mu.Lock()
			f.mute = true
			f.Mu.Unlock()
		}
	}
	f.Fails(f.forward(), "what was reached before is not any more: ", "cross-node: 0 of 2 (before: 2 of 2)")
	f.Mu.Lock()
	f.mute, f.shut = false, true
	f.Mu.Unlock()
	f.Must(f.job.Rollback(t.Context(), f.runner))
}

// TestMaskedByServices: kube-proxy gives pods of the new network the address of a node when they
// call a Service. Policies then refuse what they let in, though pods reach each other, and every
// Service that has a pod on the same node.
func TestMaskedByServices(t *testing.T) {
	f := setup(t)
	take := f.runner.Sink
	mask := func(on bool) {
		f.Mu.Lock()
		defer f.Mu.Unlock()
		f.masked = on
	}
	f.runner.Sink = func(e engine.Event) {
		take(e)
		if e.Step == "begin" && e.Kind == engine.StepDone {
			mask(true)
		}
	}
	err := f.forward()
	f.Fails(err, "service-cross-node: 0 of 2 (before: 2 of 2)")
	var worse *switchover.WorseError
	if !errors.As(err, &worse) || !strings.Contains(worse.Advice(), "RP5203") || strings.Contains(err.Error(), " cross-node:") {
		t.Errorf("%v", err)
	}
	if f.status().Phase == v1alpha1.PhaseMoved {
		t.Error("it counts as done")
	}
	mask(false) // as by a restart of kube-proxy
	f.Must(f.forward())
}

// TestFrozenByAMirror: a mirror of all namespaces keeps others from deleting what the switch has to
// delete, there and on the way back. The control deletes the DaemonSet as the switch did before.
func TestFrozenByAMirror(t *testing.T) {
	f := setup(t)
	mirror := &freeze.Deploys{Client: server, Migration: "mirror"}
	f.Must(engine.Drive(t.Context(), mirror))
	t.Cleanup(func() {
		if err := engine.Drive(context.Background(), mirror.Undo()); err != nil {
			t.Error(err)
		}
	})
	set := f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps)
	if err := server.Delete(t.Context(), set); !freeze.Refused(err) {
		t.Fatalf("a bare deletion is not refused: %v", err)
	}
	f.Must(f.forward())
	if f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps) != nil {
		t.Error("the old network is there")
	}
	if frozen, err := freeze.DeploysInForce(t.Context(), server); err != nil || !frozen {
		t.Errorf("the freeze is gone: %v", err)
	}
	f.Must(f.job.Rollback(t.Context(), f.runner))
	back := f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps)
	if back == nil || back.GetLabels()[v1alpha1.LabelBreakGlass] != "" {
		t.Errorf("the old network is not as it was: %v", back)
	}
}

// TestProxyIsLookedFor by its ConfigMap, and by the command lines of pods.
func TestProxyIsLookedFor(t *testing.T) {
	f := setup(t)
	m := sample(f.dir)
	m.Spec.CNI.Vouch.KubeProxy = false
	f.with(m)
	f.Fails(f.forward(), "RP5203: neither a ConfigMap in kube-system nor the command line of a pod")
	proxy := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "kube-proxy-a"},
		Spec: corev1.PodSpec{NodeName: "a", HostNetwork: true, Containers: []corev1.Container{
			{Name: "c", Image: "i", Command: []string{"/usr/bin/kube-proxy", "--cluster-cidr=10.244.0.0/16"}},
		}},
	}
	f.Must(server.Create(f.Context(), proxy))
	f.Fails(f.forward(), "RP5203: clusterCIDR [10.244.0.0/16] in Pod kube-system/kube-proxy-a does not cover 10.245.0.0/16")
	if f.did("begin") {
		t.Error("something was touched")
	}
}

func TestResidueIsToldByNode(t *testing.T) {
	f := setup(t)
	f.deployment("web", 1)
	take := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		take(e)
		if e.Step == "pods/others" && e.Kind == engine.StepDone {
			f.Mu.Lock()
			f.left["b"] = []string{"chain ip nat FLANNEL-POSTRTG"}
			f.Mu.Unlock()
		}
	}
	f.Fails(f.forward(), "node b still has of flannel: chain ip nat FLANNEL-POSTRTG")
}

// TestLeftInANamespaceOfOthers: where the files in deploy have made replumb's namespace it stays,
// and what a run that was cut off has left in it goes all the same. The control is what belongs to
// another migration.
func TestLeftInANamespaceOfOthers(t *testing.T) {
	f := setup(t)
	f.Must(server.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		Name: v1alpha1.SystemNamespace, Labels: map[string]string{v1alpha1.LabelMigration: ""},
	}}))
	for name, migration := range map[string]string{"left": f.job.Spec.Name, "control": "another"} {
		f.Must(server.Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: v1alpha1.SystemNamespace, Name: name, Labels: map[string]string{v1alpha1.LabelMigration: migration},
			},
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
		}))
	}
	p, err := f.job.Look(t.Context())
	f.Must(err)
	f.Must(engine.Drive(t.Context(), p.Shared().Namespace(p.Shared().Sweep()).Undo()))
	if f.have("Service", v1alpha1.SystemNamespace, "left", core) != nil {
		t.Error("what was left is there")
	}
	if f.have("Service", v1alpha1.SystemNamespace, "control", core) == nil ||
		f.have("Namespace", "", v1alpha1.SystemNamespace, core) == nil {
		t.Error("what belongs to others is gone")
	}
}
