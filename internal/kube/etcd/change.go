package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
)

// Every change looks, does nothing if it is made already, asks Allow, and goes to the leader:
// another member might be gone before it has answered.

// AddLearner adds a member by its peer URLs, which identify it until it first starts.
func (c *Client) AddLearner(ctx context.Context, name string, peerURLs ...string) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	change := MemberChange{Kind: AddLearner, Member: name}
	added, err := cluster.added(change, peerURLs)
	if added || err != nil {
		return err
	}
	if err := cluster.Allow(change); err != nil {
		return refusal(err)
	}
	return c.lead(ctx, cluster, fmt.Sprintf("adding etcd member %s", name), func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MemberAddAsLearner(ctx, peerURLs)
		return err
	})
}

// added finds a member with these peer URLs, and refuses URLs of another one.
func (c *Membership) added(change MemberChange, peerURLs []string) (bool, error) {
	if len(peerURLs) == 0 {
		return false, &RefusedError{Change: change, Problem: "no peer URL is given"}
	}
	for i := range c.Members {
		m := &c.Members[i]
		shared := slices.ContainsFunc(peerURLs, func(u string) bool { return slices.Contains(m.PeerURLs, u) })
		switch {
		case !shared:
		case m.Name != "" && m.Name != change.Member:
			return false, &RefusedError{Change: change, Problem: "its peer URL is that of member " + m.Name}
		case sameURLs(m.PeerURLs, peerURLs):
			return true, nil
		}
	}
	return false, nil
}

func sameURLs(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// Promote makes a learner a voter once it has caught up. etcd would be content with nine tenths
// (readyPercentThreshold in go.etcd.io/etcd/server/v3/etcdserver/server.go), and wait for the rest
// at the next failure.
func (c *Client) Promote(ctx context.Context, who string) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	m := cluster.Find(who)
	if m != nil && !m.Learner {
		return nil
	}
	if err := cluster.Allow(MemberChange{Kind: Promote, Member: who}); err != nil {
		return refusal(err)
	}
	if err := c.caughtUp(ctx, cluster, m); err != nil {
		return err
	}
	return c.lead(ctx, cluster, "promoting etcd member "+m.Called(), func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MemberPromote(ctx, m.ID)
		if errors.Is(err, rpctypes.ErrMemberNotLearner) {
			return nil
		}
		return err
	})
}

// Remove removes a member. A leader hands over first: an election costs seconds.
func (c *Client) Remove(ctx context.Context, who string) error { return c.remove(ctx, who, 0) }

func (c *Client) remove(ctx context.Context, who string, voters int) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	change := MemberChange{Kind: Remove, Member: who}
	m, err := cluster.find(who)
	switch {
	case err != nil:
		return &RefusedError{Change: change, Problem: err.Error(), Hint: "name it by its ID"}
	case m == nil:
		return nil
	}
	if err := cluster.Allow(change); err != nil {
		return refusal(err)
	}
	if all, _ := cluster.Voters(); !m.Learner && all-1 < voters {
		return &RefusedError{
			Change: change, Problem: fmt.Sprintf("%d voters would be left, and it should be %d", all-1, voters),
			Hint: "add a member and promote it first",
		}
	}
	if m.ID == cluster.Leader {
		if err := c.MoveLeaderFrom(ctx, who); err != nil {
			return err
		}
		return engine.NotYet("etcd member %s was leading a moment ago", m.Called())
	}
	return c.lead(ctx, cluster, "removing etcd member "+m.Called(), func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MemberRemove(ctx, m.ID)
		if errors.Is(err, rpctypes.ErrMemberNotFound) {
			return nil
		}
		return err
	})
}

// MayStop refuses while a member must not be stopped: because of the others, or since it leads.
func (c *Client) MayStop(ctx context.Context, who string) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	if err := cluster.Allow(MemberChange{Kind: Stop, Member: who}); err != nil {
		return refusal(err)
	}
	if m := cluster.Find(who); m.ID == cluster.Leader {
		return engine.NotYet("etcd member %s leads", m.Called())
	}
	return nil
}

// SetPeerURLs announces where a stopped member will be, before it starts there: it would else wait
// for entries that others send to the old URL.
func (c *Client) SetPeerURLs(ctx context.Context, who string, peerURLs ...string) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	change := MemberChange{Kind: Readdress, Member: who}
	m := cluster.Find(who)
	if m != nil && sameURLs(m.PeerURLs, peerURLs) {
		return nil
	}
	if err := cluster.Allow(change); err != nil {
		return refusal(err)
	}
	if _, err := cluster.added(MemberChange{Kind: Readdress, Member: m.Name}, peerURLs); err != nil {
		return err
	}
	if m.ID == cluster.Leader {
		return engine.NotYet("etcd member %s leads", m.Called())
	}
	doing := fmt.Sprintf("giving etcd member %s its new address", m.Called())
	return c.lead(ctx, cluster, doing, func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MemberUpdate(ctx, m.ID, peerURLs)
		return err
	})
}

func (c *Client) lead(ctx context.Context, cluster *Membership, doing string, change func(context.Context, *clientv3.Client) error) error {
	if err := engine.MayWrite(ctx, true); err != nil {
		return err
	}
	if err := c.ask(ctx, cluster.Leading(), changeLimit, change); err != nil {
		return failed(err, "%s", doing)
	}
	return nil
}
