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

// following runs what the Deployment overlap runs, and returns what it has said so far.
func (f *fixture) following() (said func() string) {
	ctx, cancel := context.WithCancel(f.Context())
	var mu sync.Mutex
	var all []string
	follower := &bridge.Follower{
		Client: server, Migration: "m",
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

// unlocked gives the lock back that the killed run has left: nobody waits here for it to run out.
func (f *fixture) unlocked() {
	f.Helper()
	lock, err := lease.Acquire(f.Context(), server, *migrationtest.Killed(), time.Now)
	f.must(err)
	f.must(lock.Release(f.Context()))
}

// TestOverlapEndsAHop: a run was killed between the patches, and nobody runs another one. As long as
// somebody has the lock, and for what an owner makes look like a hop, nothing is done.
func TestOverlapEndsAHop(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		for _, then := range []string{"apply", "rollback"} {
			t.Run(then, func(t *testing.T) {
				f := killedOnTheWay(t, change)
				f.unlocked()
				lock, err := lease.Acquire(t.Context(), server, lease.Self("m", "another run"), time.Now)
				f.must(err)
				said := f.following()
				control := time.Now()
				f.eventually("25 s", func() error {
					if time.Since(control) < 25*time.Second {
						return engine.NotYet("not over")
					}
					return nil
				})
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
