package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/internal/engine"
)

// MoveLeaderFrom hands leadership from this member to the healthiest other voter, preferably one
// that is not leaving. Writes in between fail, some after seven seconds only (leadTransferee in
// go.etcd.io/raft/v3/raft.go has the old leader drop them), so it is done as rarely as possible.
func (c *Client) MoveLeaderFrom(ctx context.Context, who string, leaving ...string) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	m := cluster.Find(who)
	if m == nil || m.ID != cluster.Leader {
		return nil
	}
	nextLeader := cluster.nextLeader(leaving)
	if nextLeader == nil {
		all, healthy := cluster.Voters()
		return engine.NotYet("etcd member %s leads, and none can take over: of %d voters %d are healthy", m.Called(), all, healthy)
	}
	// A leader that is behind refuses writes until it catches up (raft, section 3.10).
	if err := c.caughtUp(ctx, cluster, nextLeader); err != nil {
		return err
	}
	doing := fmt.Sprintf("having etcd member %s lead instead of %s", nextLeader.Called(), m.Called())
	return c.lead(ctx, cluster, doing, func(ctx context.Context, leader *clientv3.Client) error {
		_, err := leader.MoveLeader(ctx, nextLeader.ID)
		return err
	})
}

// nextLeader is a healthy voter without alarms: one that stays before one that leaves, and then the
// one that has applied most.
func (c *Membership) nextLeader(leaving []string) *Member {
	var going []*Member
	for _, who := range leaving {
		going = append(going, c.Find(who))
	}
	var best *Member
	better := func(m *Member) bool {
		stays, bestStays := !slices.Contains(going, m), best != nil && !slices.Contains(going, best)
		return best == nil || (stays && !bestStays) || (stays == bestStays && m.Applied > best.Applied)
	}
	for i := range c.Members {
		m := &c.Members[i]
		if m.ID != c.Leader && m.defect() == "" && better(m) {
			best = m
		}
	}
	return best
}

// LeaderLast sorts members that are replaced in turn: handovers cost writes, so the leader hands
// over once, to one that stays.
func (c *Membership) LeaderLast(leaving []string) []string {
	leads := func(who string) bool { m := c.Find(who); return m != nil && m.ID == c.Leader }
	sorted := slices.DeleteFunc(slices.Clone(leaving), leads)
	for _, who := range leaving {
		if leads(who) {
			sorted = append(sorted, who)
		}
	}
	return sorted
}

// caughtUp asks the leader for its index and waits for the member to reach that: under load it is
// always a little behind.
func (c *Client) caughtUp(ctx context.Context, cluster *Membership, m *Member) error {
	leads, err := c.entries(ctx, cluster.Leading())
	if err != nil {
		return failed(err, "asking etcd member %s, which leads, what it has", cluster.Leading().Called())
	}
	var has *clientv3.StatusResponse
	err = wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, c.config.Timeout, true, func(ctx context.Context) (bool, error) {
		status, err := c.entries(ctx, m)
		if err != nil {
			return false, err
		}
		has = status
		return has.RaftAppliedIndex >= leads.RaftIndex, nil
	})
	switch {
	case err == nil:
		return nil
	case has != nil && (wait.Interrupted(err) || errors.Is(err, context.DeadlineExceeded)):
		return engine.NotYet("etcd member %s has %d entries of %d", m.Called(), has.RaftAppliedIndex, leads.RaftIndex)
	}
	return failed(err, "asking etcd member %s what it has", m.Called())
}

func (c *Client) entries(ctx context.Context, m *Member) (s *clientv3.StatusResponse, err error) {
	err = c.ask(ctx, m, c.config.Timeout, func(ctx context.Context, one *clientv3.Client) error {
		s, err = one.Status(ctx, m.ClientURLs[0])
		return err
	})
	return s, err
}
