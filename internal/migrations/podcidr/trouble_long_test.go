//go:build apiserver && long

package podcidr

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
)

// hasty gives workloads little time, so that what is stuck shows soon.
func hasty(m *v1alpha1.Migration) {
	m.Spec.PodCIDR.Roll.Timeout = &metav1.Duration{Duration: 20 * time.Second}
}

func (f *fixture) merge(o client.Object, patch string) {
	f.Helper()
	f.Must(server.Patch(f.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// blockedBy expects findings of one check to have kept a run from starting.
func (f *fixture) blockedBy(err error, code, says string) {
	f.Helper()
	var blocked *findings.BlockedError
	if !errors.As(err, &blocked) {
		f.Fatalf("got %v, want %s", err, code)
	}
	for _, x := range blocked.Findings {
		if x.Code == code && strings.Contains(x.Message, says) {
			return
		}
	}
	f.Fatalf("got %v, want %s %q", err, code, says)
}

func TestImageCannotBePulled(t *testing.T) {
	f := setup(t, hasty)
	f.Deployment("web", 3)
	f.set(&f.obstacle, "no such image: registry.example/i")
	f.Fails(f.apply(), "Deployment shop/web", "ImagePullBackOff no such image")
	if st := f.again(); !strings.Contains(st.LastError, "no such image") {
		t.Errorf("status: %+v", st)
	}
	if n := len(f.ready("web")); n < 3 { // 25 % of three, rounded down, may be gone
		t.Errorf("%d pods are left", n)
	}
	f.set(&f.obstacle, "")
	f.Must(f.apply())
	f.in(newRange, "web", 3)
}

func TestBudgetThatNeverAllows(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 3)
	b := f.Budget("web", 3)
	f.blockedBy(f.apply(), "RP2401", "poddisruptionbudget shop/web never lets a pod go: minAvailable is 3 of 3 pods")
	f.merge(b, `{"spec":{"minAvailable":2}}`)
	f.Until("the budget to allow one", func() bool {
		f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(b), b))
		return b.Status.DisruptionsAllowed == 1
	})
	f.Must(f.apply())
	f.in(newRange, "web", 3)
}

// TestBudgetBlocksMeanwhile: one pod is not ready, so that the budget allows nothing.
func TestBudgetBlocksMeanwhile(t *testing.T) {
	f := setup(t, hasty)
	f.Deployment("web", 3)
	b := f.Budget("web", 3-1)
	all := &corev1.PodList{}
	f.Must(server.List(t.Context(), all, client.InNamespace("shop")))
	pod := &all.Items[0]
	pod.Status.Conditions[0].Status = corev1.ConditionFalse
	f.Must(server.Status().Update(t.Context(), pod))
	f.Until("the budget to allow none", func() bool {
		f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(b), b))
		return b.Status.DisruptionsAllowed == 0
	})
	f.Fails(f.apply(), "pdb shop/web allows no disruption now; Deployment shop/web waits for it")
	f.merge(b, `{"spec":{"minAvailable":1}}`)
	f.Must(f.apply())
	f.in(newRange, "web", 3)
}

func TestPauseAndResume(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.set(&f.obstacle, "slow")
	ended := f.applying()
	f.Waiting("ImagePullBackOff slow")
	f.Must(f.job.Pause(t.Context()))
	if err := <-ended; !errors.Is(err, engine.ErrPaused) { // though pods that it waits for cannot come up
		t.Fatalf("got %v", err)
	}
	f.set(&f.obstacle, "")
	f.Until("what had begun to be finished", func() bool {
		all := f.ready("web")
		return len(all) == 2 && !slices.ContainsFunc(all, func(a netip.Addr) bool { return !netip.MustParsePrefix(newRange).Contains(a) })
	})
	f.Fails(f.apply(), "paused")
	paused, err := migration.Get(t.Context(), server, "m")
	f.Must(err)
	f.with(paused) // as the command has it, which takes the Migration from the cluster
	f.Must(f.job.Resume(t.Context()))
	f.Must(f.apply())
	f.Must(f.finish())
	f.onlyPool(newRange)
}

func TestDatastoreNotReady(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	info := calico.Empty("ClusterInformation", "default")
	info.Object["spec"] = map[string]any{"datastoreReady": false}
	f.Must(server.Create(t.Context(), info))
	f.blockedBy(f.apply(), "RP2002", "datastore is locked")
	f.merge(info, `{"spec":{"datastoreReady":true}}`)
	f.Must(f.apply())
	f.merge(info, `{"spec":{"datastoreReady":false}}`)
	f.runner.Deadline = 5 * time.Second
	f.Fails(f.finish(), "the datastore of Calico is locked")
	f.merge(info, `{"spec":{"datastoreReady":true}}`)
	f.runner.Deadline = patience
	f.Must(f.finish())
	f.onlyPool(newRange)
}

// TestPoolsAreEdited in every way that matters, between and during runs.
func TestPoolsAreEdited(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.job.Until = "add"
	f.Must(f.apply())
	f.job.Until = ""
	target, old := calico.Empty("IPPool", newPool), calico.Empty("IPPool", "default")
	f.merge(target, `{"spec":{"disabled":true}}`)
	f.blockedBy(f.apply(), "RP2202", "gives no addresses to pods")
	f.merge(target, `{"spec":{"disabled":false}}`)
	f.set(&f.obstacle, "slow")
	ended := f.applying()
	f.Waiting("ImagePullBackOff slow")
	f.merge(old, `{"spec":{"disabled":false}}`) // the new pods get old addresses again
	f.set(&f.obstacle, "")
	f.Fails(<-ended, "ippool default is enabled: it was changed meanwhile")
	f.Must(f.apply()) // which disables it again
	f.in(newRange, "web", 2)
	f.merge(old, `{"spec":{"disabled":false}}`)
	f.Fails(f.finish(), "the old pools still give addresses to new pods")
	f.Must(f.apply())
	f.Must(f.finish())
	f.onlyPool(newRange)
}

func TestNodesComeAndGoMeanwhile(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 3)
	f.DaemonSet("log", 2)
	f.set(&f.obstacle, "slow")
	ended := f.applying()
	f.Waiting("ImagePullBackOff slow")
	f.Must(f.fleet.Node(t.Context(), "c", netip.MustParseAddr("192.0.2.3")))
	f.Must(server.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}))
	f.set(&f.obstacle, "")
	if err := <-ended; err != nil {
		f.Must(f.apply())
	}
	f.in(newRange, "web", 3)
	f.Must(f.finish())
	state, err := calico.Load(t.Context(), server)
	f.Must(err)
	for i := range state.Blocks {
		if !netip.MustParsePrefix(newRange).Contains(state.Blocks[i].CIDR.Addr()) {
			t.Errorf("block %s is left", state.Blocks[i].CIDR)
		}
	}
}

func TestBarePods(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.barePod("alone")
	f.Must(f.apply())
	f.in(newRange, "web", 2)
	f.in(oldRange, "alone", 1) // it is reported, and stays
	f.Fails(f.finish(), "1 pod with old addresses, the first is shop/alone")
	f.Must(server.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "alone"}}))
	f.Until("the pod to end", func() bool { return len(f.ready("alone")) == 0 })
	f.Must(f.apply())
	f.Must(f.finish())
	f.onlyPool(newRange)
}

func TestBarePodsAreEvicted(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.PodCIDR.Roll.BarePods = v1alpha1.BarePodsEvict })
	f.barePod("alone")
	f.Must(f.apply())
	if n := len(f.ready("alone")); n != 0 {
		t.Errorf("the pod is still there")
	}
}
