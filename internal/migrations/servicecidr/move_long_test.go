//go:build apiserver && long

package servicecidr

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// TestFinishedRangeCanBeEmptied: what one migration filled, the next may leave, without being told
// of it.
func TestFinishedRangeCanBeEmptied(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.apply()
	f.must(f.job.Finish(t.Context(), f.runner))
	snap, err := inventory.Load(t.Context(), f.job.Deps.Cluster)
	f.must(err)
	next := services.Load(snap, services.Spec{Name: "next", Mode: v1alpha1.ModeMove, To: []netip.Prefix{netip.MustParsePrefix("172.30.0.0/16")}})
	var moves []string
	for _, e := range next.Moves {
		moves = append(moves, e.Service.Name)
	}
	if !slices.Contains(moves, "cart") {
		t.Errorf("the next migration moves %v, not cart", moves)
	}
}

// TestAnnotationsAreHints: where a Service came from is known by the addresses that are reserved
// for it, whatever it says.
func TestAnnotationsAreHints(t *testing.T) {
	for name, damage := range map[string]func(notes map[string]string){
		"target removed": func(notes map[string]string) { delete(notes, v1alpha1.AnnotationTargetIP) },
		"another origin": func(notes map[string]string) { notes[v1alpha1.AnnotationOldIP] = "10.96.0.10" },
		"all removed":    func(notes map[string]string) { clear(notes) },
		"another owner":  func(notes map[string]string) { notes[v1alpha1.LabelMigration] = "other" },
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			was := f.service("cart", at("10.96.3.7"))
			f.apply()
			damaged := f.get("cart")
			damage(damaged.Annotations)
			f.must(server.Update(t.Context(), damaged))
			f.apply()
			f.checkBridge(was, f.get("cart"), v1alpha1.BridgeLoadBalancer)
			f.must(f.rollback())
			if is := f.get("cart"); is.Spec.ClusterIP != "10.96.3.7" || len(is.Annotations) > 0 {
				t.Errorf("after rollback it is at %s, with %v", is.Spec.ClusterIP, is.Annotations)
			}
			f.nothingLeft()
		})
	}
}

// atLock does something right before the lock is taken.
type atLock struct {
	client.WithWatch
	do   func()
	once sync.Once
}

func (c *atLock) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if _, ok := o.(*coordinationv1.Lease); ok {
		c.once.Do(c.do)
	}
	return c.WithWatch.Create(ctx, o, opts...)
}

// TestFinishSeesWhatAppearedBeforeItsLock: finish looks whether it may go on, and then takes the
// lock. Objects that another run left in between is removed, too.
func TestFinishSeesWhatAppearedBeforeItsLock(t *testing.T) {
	f := setup(t)
	f.service("cart", at("10.96.3.7"))
	f.apply()
	stray := &bridge.Hold{
		Migration: "m", Address: netip.MustParseAddr("172.24.9.9"), Bridge: types.NamespacedName{Namespace: "shop", Name: "gone-bridge"},
	}
	appeared := false
	cut := *f.job.Deps.Cluster
	cut.WithWatch = &atLock{WithWatch: server.WithWatch, do: func() {
		f.must(stray.Create(f.Context(), server))
		appeared = true
	}}
	f.through(&cut, func() { f.must(f.finish()) })
	if !appeared {
		t.Error("the lock was not seen to be taken")
	}
	f.nothingLeft()
}
