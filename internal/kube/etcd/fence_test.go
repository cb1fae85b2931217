package etcd

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/safety/lease"
)

// lost is the fence of a run whose lock is another's.
type lost struct{}

func (lost) MayWrite(context.Context, bool) error {
	return &lease.LostError{Why: errors.New("it is another's")}
}

// TestMembersBehindAFence: etcd knows nothing of the lock. Without the fence the member is asked,
// which is not there.
func TestMembersBehindAFence(t *testing.T) {
	c, cluster := &Client{}, &Membership{Leader: 1, Members: []Member{{ID: 1, Name: "m1"}}}
	for _, ctx := range []context.Context{t.Context(), engine.Fenced(t.Context(), lost{})} {
		err := c.lead(ctx, cluster, "removing etcd member m2", func(context.Context, *clientv3.Client) error { return nil })
		if err == nil || engine.Revoked(err) != (engine.FenceOf(ctx) != nil) {
			t.Errorf("got %v", err)
		}
	}
}
