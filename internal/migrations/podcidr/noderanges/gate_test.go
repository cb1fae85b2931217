package noderanges

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/lease"
)

// TestGateOutlastsServers: k3s restarts its API server with its controller manager, so that
// nobody renews the lock while people do what the gate asks for.
func TestGateOutlastsServers(t *testing.T) {
	away, err := cluster.Connect(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	c := fake.NewClientBuilder().Build()
	lock, err := lease.Acquire(t.Context(), c, lease.Self("m", "replumb apply"), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = lock.Release(t.Context()) })
	gate := &rangeGate{tools: migration.Deps{Cluster: away}, mode: gatePaused}
	if err := gate.Verify(lock.Context(t.Context())); err == nil {
		t.Fatal("the gate holds without an API server")
	}
	held := &coordinationv1.Lease{}
	if err := c.Get(t.Context(), lease.Key(), held); err != nil {
		t.Fatal(err)
	}
	if got := time.Duration(*held.Spec.LeaseDurationSeconds) * time.Second; got != lease.Restart {
		t.Errorf("the lock lasts %s without a renewal, want %s", got, lease.Restart)
	}
}
