//go:build apiserver

package cni

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/cni/drained"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

const apps, core = "apps/v1", "v1"

// TestReaderSees: who may only look gets every finding, and what is missing to operate is one.
func TestReaderSees(t *testing.T) {
	f := setup(t)
	f.operator = migrationtest.Reader(t, server, drainedRoles())
	f.with(f.job.Migration)
	p, err := f.job.Look(t.Context())
	f.Must(err)
	if !migrationtest.Says(p.Found(), "RP5001", "missing permission: ") {
		t.Errorf("findings: %+v", p.Found())
	}
}

func TestThereAndFinished(t *testing.T) {
	f := setup(t)
	f.deployment("web", 3)
	tool := f.bare("tool")
	f.Must(f.forward())

	for _, p := range append(f.pods("shop", "web"), f.pods("shop", "tool")...) {
		if a := netip.MustParseAddr(p.Status.PodIP); !netip.MustParsePrefix("10.245.0.0/16").Contains(a) {
			t.Errorf("pod %s has the address %s", p.Name, a)
		}
	}
	if got := f.pods("shop", "tool"); len(got) != 1 || got[0].UID == tool.UID || got[0].Spec.NodeName != "a" {
		t.Errorf("the pod without an owner: %+v", got)
	}
	for _, gone := range [][3]string{
		{"DaemonSet", "kube-flannel", "kube-flannel-ds"}, {"ConfigMap", "kube-flannel", "kube-flannel-cfg"},
	} {
		version := map[bool]string{true: apps, false: core}[gone[0] == "DaemonSet"]
		if f.have(gone[0], gone[1], gone[2], version) != nil {
			t.Errorf("%v is still there", gone)
		}
	}
	if f.have("Wire", "", "one", "example.com/v1") == nil || f.have("DaemonSet", "kube-system", "calico-node", apps) == nil {
		t.Error("not all of the manifests was applied")
	}
	st := f.status()
	if st.Phase != v1alpha1.PhaseMoved || st.Counts.Moved != 4 || st.Counts.Total != 4 || st.CNI.Network != v1alpha1.Calico ||
		st.LastError != "" {
		t.Errorf("status after apply: %+v %+v", st, st.CNI)
	}
	if want := "cluster-services=2/2 cross-node=2/2 denied=0/4 node=4/4 same-node=2/2 service=2/2 service-cross-node=2/2"; st.CNI.Baseline != want {
		t.Errorf("baseline %q, want %q", st.CNI.Baseline, want)
	}
	if all := f.left["a"]; len(all) > 0 {
		t.Errorf("node a was not cleaned: %v", all)
	}
	f.Events = nil
	f.Must(f.forward()) // a second time changes nothing
	for _, e := range f.Events {
		if e.Kind == engine.StepDone {
			t.Errorf("a second apply did %s", e.Step)
		}
	}
	f.Must(f.job.Finish(t.Context(), f.runner))
	if st := f.status(); st.Phase != v1alpha1.PhaseFinished || !st.PointOfNoReturnPassed {
		t.Errorf("status after finish: %+v", st)
	}
	err := server.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
	f.Fails(f.job.Rollback(t.Context(), f.runner), "point of no return")
}

func TestThereAndBack(t *testing.T) {
	f := setup(t)
	f.deployment("web", 2)
	f.bare("tool")
	set := f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps)
	f.Must(f.forward())
	f.Must(f.job.Rollback(t.Context(), f.runner))
	back := f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps)
	if back == nil || back.GetUID() == set.GetUID() {
		t.Fatalf("the old network is not back: %v", back)
	}
	for _, gone := range []struct{ kind, namespace, name, version string }{
		{"DaemonSet", "kube-system", "calico-node", apps},
		{"IPPool", "", "new", manifests.CalicoGroup + "/v1"},
		{"CustomResourceDefinition", "", "wires.example.com", "apiextensions.k8s.io/v1"},
		{"ConfigMap", "kube-system", "calico-config", core},
	} {
		if f.have(gone.kind, gone.namespace, gone.name, gone.version) != nil {
			t.Errorf("%+v is still there", gone)
		}
	}
	if len(f.pods("shop", "web")) != 2 || len(f.pods("shop", "tool")) != 1 {
		t.Error("pods are missing")
	}
	if st := f.status(); st.Phase != v1alpha1.PhaseRolledBack || st.CNI != nil {
		t.Errorf("status: %+v, %+v", st, st.CNI)
	}
	f.Mu.Lock()
	f.shut = false
	f.Mu.Unlock()
	f.Must(f.forward()) // and there again
	f.requests.Took(t, drainedRoles(), unused())
}

// unused are the rights that no request of the operator takes in these tests, where the
// administrator brings what is in manifests.
func unused() map[string]string {
	all := map[string]string{
		"create secrets in replumb-system":                      "manifests with Secrets",
		"delete secrets in replumb-system":                      "manifests with Secrets",
		"create customresourcedefinitions.apiextensions.k8s.io": "manifests with definitions",
		"list services": "report",
		"list horizontalpodautoscalers.autoscaling":      "mode InPlace, whose nodes are emptied",
		"list replicasets.apps":                          "spec.cni.again",
		"list poddisruptionbudgets.policy":               "spec.cni.again",
		"list statefulsets.apps":                         "mode InPlace, whose nodes are emptied",
		"get nodes":                                      "mode InPlace, whose nodes are marked",
		"get ciliumnodeconfigs.cilium.io in kube-system": "mode InPlace, with spec.cni.kubeProxy: Replace",
	}
	for _, role := range Roles() {
		for _, rule := range role.Rules {
			for _, r := range rule.Rights {
				if rule.Why == manifestsHold || rule.Why == manifestsAre || r.Group == manifests.CalicoGroup {
					all[r.String()] = rule.Why
				}
			}
		}
	}
	return all
}

// TestKilledAnywhere cuts apply off after every step, as a killed process would be, and carries on.
func TestKilledAnywhere(t *testing.T) {
	f := setup(t)
	f.deployment("web", 2)
	f.bare("tool")
	take := f.take
	done := map[string]bool{}
	for range 60 {
		ctx, cancel := context.WithCancel(t.Context())
		f.runner.Sink = func(e engine.Event) {
			take(e)
			if e.Kind == engine.StepDone && !done[e.Step] {
				done[e.Step] = true
				cancel()
			}
		}
		_, err := f.job.Apply(ctx, f.runner)
		cancel()
		if err == nil {
			if len(done) < 15 {
				t.Errorf("it was cut off only after %v", done)
			}
			if len(f.pods("shop", "web")) != 2 || len(f.pods("shop", "tool")) != 1 || f.status().Phase != v1alpha1.PhaseMoved {
				t.Errorf("status: %+v", f.status())
			}
			return
		}
		if !errors.Is(err, engine.ErrInterrupted) {
			t.Fatal(err)
		}
	}
	t.Fatal("there is no end of it")
}

func TestTrafficStopsIt(t *testing.T) {
	f := setup(t)
	f.clients = []string{"203.0.113.5"}
	err := f.forward()
	f.Fails(err, "serves clients from outside: 203.0.113.5")
	var traffic *drained.TrafficError
	if !errors.As(err, &traffic) || traffic.Advice() == "" {
		t.Errorf("%#v", err)
	}
	if f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps) == nil || f.did("begin") {
		t.Error("something was touched")
	}
	f.job.AcceptDowntime = true
	f.Must(f.forward())
}

func TestBadInputTouchesNothing(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"RP5105: ": func(f *fixture) { f.Must(os.WriteFile(filepath.Join(f.dir, "calico.yaml"), []byte("a: [\n"), 0o600)) },
		"RP5103: ": func(f *fixture) {
			set := f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps)
			f.Must(server.Patch(f.Context(), set, client.RawPatch(types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"addonmanager.kubernetes.io/mode":"Reconcile"}}}`))))
		},
		"RP5003: ": func(f *fixture) {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
			f.Must(server.Status().Patch(f.Context(), n, client.RawPatch(types.StrategicMergePatchType,
				[]byte(`{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`))))
		},
	} {
		t.Run(strings.TrimSuffix(name, ": "), func(t *testing.T) {
			f := setup(t)
			change(f)
			err := f.forward()
			f.Fails(err, name)
			var blocked *findings.BlockedError
			if !errors.As(err, &blocked) {
				t.Errorf("%v", err)
			}
			if f.have("DaemonSet", "kube-flannel", "kube-flannel-ds", apps) == nil || f.status().Phase != "" {
				t.Error("something was touched")
			}
		})
	}
}
