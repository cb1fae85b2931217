//go:build apiserver && long

package servicecidr

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// soon is shorter than the Deployment's: here it is known that nobody is at work.
const soon = 2 * time.Second

// following runs what the Deployment overlap runs, and returns what it has said so far.
func (f *fixture) following() (said func() string) {
	ctx, cancel := context.WithCancel(f.Context())
	var mu sync.Mutex
	var all []string
	follower := &bridge.Follower{
		Client: server, Migration: "m", Addressless: soon,
		Locked: func(ctx context.Context) (bool, error) { return migration.Locked(ctx, server) },
		Told: func(text string) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, text)
		},
	}
	var running sync.WaitGroup
	running.Go(func() { follower.Run(ctx) })
	f.Cleanup(func() { cancel(); running.Wait() })
	return func() string {
		mu.Lock()
		defer mu.Unlock()
		return strings.Join(all, "; ")
	}
}

// unlocked gives the lock back that the killed run has left: nobody waits for it to run out.
func (f *fixture) unlocked() {
	f.Helper()
	lock, err := lease.Acquire(f.Context(), server, *migrationtest.Killed(), time.Now)
	f.must(err)
	f.must(lock.Release(f.Context()))
}

// TestOverlapEndsAHop: a run was killed between the patches, and nobody runs another one. As long
// as somebody has the lock, nothing is done.
func TestOverlapEndsAHop(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		for _, then := range []string{"apply", "rollback"} {
			t.Run(then, func(t *testing.T) {
				f := killedOnTheWay(t, change)
				f.unlocked()
				lock, err := lease.Acquire(t.Context(), server, lease.Self("m", "another run"), time.Now)
				f.must(err)
				said := f.following()
				f.while(3 * soon)
				if !f.half(f.get("cart")) {
					t.Fatal("it was completed under the lock of a run")
				}
				f.must(lock.Release(t.Context()))
				f.arrives("cart")
				if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" || !strings.Contains(said(), "service shop/cart was without an address") {
					t.Errorf("cart is at %s; it says %q", is.Spec.ClusterIP, said())
				}
				f.must(f.run(then))
				want := map[string]string{"apply": "172.24.3.7", "rollback": "10.96.3.7"}[then]
				if is := f.get("cart"); is.Spec.ClusterIP != want {
					t.Errorf("cart is at %s", is.Spec.ClusterIP)
				}
				if then == "rollback" {
					f.nothingLeft()
				}
			})
		}
	})
}

// TestOverlapLeavesAForgedHopAlone: it is its owner's.
func TestOverlapLeavesAForgedHopAlone(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		f, _ := moved(t, change)
		f.asInAHop("cart")
		said := f.following()
		f.while(3 * soon)
		if is := f.get("cart"); is.Spec.Type != corev1.ServiceTypeExternalName || said() != "" {
			t.Errorf("cart is of type %s at %s: %s", is.Spec.Type, is.Spec.ClusterIP, said())
		}
	})
}

// while lets time pass in which something would happen.
func (f *fixture) while(length time.Duration) {
	f.Helper()
	begin := time.Now()
	f.eventually("the time in which it would happen", func() error {
		if time.Since(begin) < length {
			return engine.NotYet("not over")
		}
		return nil
	})
}

func (f *fixture) arrives(name string) {
	f.Helper()
	f.eventually(name+" to get an address", func() error {
		if f.get(name).Spec.Type == corev1.ServiceTypeExternalName {
			return engine.NotYet("it has none")
		}
		return nil
	})
}

// TestOverlapEndsAHopWithoutANodePort is TestNodePortIsGone where nobody runs a command.
func TestOverlapEndsAHopWithoutANodePort(t *testing.T) {
	f := killedOnTheWay(t, func(*v1alpha1.Migration) {}, func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.Ports[0].NodePort = 32251
	})
	f.service("thief", at("10.96.3.30"), func(svc *corev1.Service) {
		svc.Spec.Type = corev1.ServiceTypeNodePort
		svc.Spec.Ports[0].NodePort = 32251
	})
	f.unlocked()
	said := f.following()
	f.arrives("cart")
	is := f.get("cart")
	if is.Spec.Type != corev1.ServiceTypeNodePort || slices.ContainsFunc(is.Spec.Ports, func(p corev1.ServicePort) bool { return p.NodePort == 32251 }) {
		t.Errorf("of type %s with ports %v", is.Spec.Type, is.Spec.Ports)
	}
	f.eventually("word of it", func() error {
		if !strings.Contains(said(), "service shop/thief has 32251 by now") {
			return engine.NotYet("it says %q", said())
		}
		return nil
	})
	f.must(f.run("apply"))
}
