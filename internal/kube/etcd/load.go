package etcd

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
)

type answer struct {
	status *clientv3.StatusResponse
	// err is why there is no status, or why it could not read.
	err error
}

// Load asks every member by its own client URLs, concurrently.
func (c *Client) Load(ctx context.Context) (*Membership, error) {
	cluster, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	answers := make([]answer, len(cluster.Members))
	var all sync.WaitGroup
	for i := range cluster.Members {
		all.Go(func() { answers[i] = c.status(ctx, &cluster.Members[i]) })
	}
	all.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err // else a run that is interrupted would see members that are not well
	}
	cluster.hear(answers)
	c.follow(cluster)
	return cluster, nil
}

// loadAgreed is Load for decisions: a list of members that may be old is not enough.
func (c *Client) loadAgreed(ctx context.Context) (*Membership, error) {
	cluster, err := c.Load(ctx)
	switch {
	case err != nil:
		return nil, err
	case cluster.Leader == 0 || cluster.Unsure != "":
		all, healthy := cluster.Voters()
		return nil, engine.NotYet("%s: %s (of %d voters %d are healthy, and it takes %d)",
			c.called("etcd"), cluster.Problem(), all, healthy, quorum(all))
	}
	return cluster, nil
}

// list has the members agree; without a quorum it is what one of them believes.
func (c *Client) list(ctx context.Context) (*Membership, error) {
	within := func(opts ...clientv3.OpOption) (*clientv3.MemberListResponse, error) {
		ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
		defer cancel()
		return c.whole.MemberList(ctx, opts...)
	}
	cluster := &Membership{}
	answer, err := within()
	if err != nil {
		cluster.Unsure = brief(err).Error()
		if answer, err = within(clientv3.WithSerializable()); err != nil {
			return nil, failed(err, "%s", c.called("asking etcd for its members"))
		}
	}
	cluster.ID = answer.Header.ClusterId
	for _, m := range answer.Members {
		cluster.Members = append(cluster.Members, memberOf(m))
	}
	slices.SortFunc(cluster.Members, func(a, b Member) int {
		switch {
		case a.Called() < b.Called():
			return -1
		case a.Called() > b.Called():
			return 1
		}
		return 0
	})
	return cluster, nil
}

func memberOf(m *etcdserverpb.Member) Member {
	return Member{ID: m.ID, Name: m.Name, PeerURLs: m.PeerURLs, ClientURLs: m.ClientURLs, Learner: m.IsLearner}
}

// status asks a member for its state and, to prove that it reaches the others, for a linearizable
// read, which learners refuse.
func (c *Client) status(ctx context.Context, m *Member) (a answer) {
	a.err = c.ask(ctx, m, c.config.Timeout, func(ctx context.Context, one *clientv3.Client) (err error) {
		if a.status, err = one.Status(ctx, m.ClientURLs[0]); err != nil || m.Learner || a.status.IsLearner {
			return err
		}
		// The key of etcdctl endpoint health, which need not exist or be permitted.
		if _, err = one.Get(ctx, "health"); errors.Is(err, rpctypes.ErrPermissionDenied) {
			err = nil
		}
		return err
	})
	return a
}

func (c *Membership) hear(answers []answer) {
	var term uint64
	for i, a := range answers {
		if s := a.status; s != nil && s.Leader == c.Members[i].ID && s.Header.MemberId == s.Leader && s.RaftTerm > term {
			c.Leader, term = s.Leader, s.RaftTerm
		}
	}
	for i := range answers {
		c.Members[i].hear(answers[i], c)
	}
	for _, a := range answers {
		if a.status == nil {
			continue
		}
		for _, text := range a.status.Errors {
			id, alarm := parseAlarm(text)
			for i := range c.Members {
				if m := &c.Members[i]; m.ID == id && !slices.Contains(m.Alarms, alarm) {
					m.Alarms = append(m.Alarms, alarm)
				}
			}
		}
	}
}

func (m *Member) hear(a answer, c *Membership) {
	if s := a.status; s != nil {
		m.Version, m.Revision, m.Term = s.Version, s.Header.Revision, s.RaftTerm
		m.Committed, m.Applied = s.RaftIndex, s.RaftAppliedIndex
		m.Size, m.InUse = s.DbSize, s.DbSizeInUse
	}
	m.Problem = m.problem(a, c)
	m.Healthy = m.Problem == ""
}

func (m *Member) problem(a answer, c *Membership) string {
	s := a.status
	switch {
	case s == nil && a.err != nil:
		return brief(a.err).Error()
	case s.Header.ClusterId != c.ID:
		return fmt.Sprintf("its client URL is that of another cluster, %x", s.Header.ClusterId)
	case s.Header.MemberId != m.ID:
		return fmt.Sprintf("its client URL is that of member %x", s.Header.MemberId)
	case s.Leader == 0:
		return "it knows no leader"
	case c.Leader != 0 && s.Leader != c.Leader:
		return fmt.Sprintf("it follows member %x, and %x leads", s.Leader, c.Leader)
	case a.err != nil:
		return fmt.Sprintf("it does not read: %v", brief(a.err))
	}
	for _, text := range s.Errors {
		if id, _ := parseAlarm(text); id == 0 {
			return text
		}
	}
	return ""
}

// parseAlarm reads "memberID:1234 alarm:NOSPACE" in the errors of a status (AlarmMember.String in
// go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc/maintenance.go). The request for alarms takes a
// majority, which may be missing, and writes to the log.
func parseAlarm(text string) (member uint64, alarm string) {
	found := regexp.MustCompile(`^memberID:(\d+)\s+alarm:(\w+)\s*$`).FindStringSubmatch(text)
	if found == nil {
		return 0, ""
	}
	member, err := strconv.ParseUint(found[1], 10, 64)
	if err != nil {
		return 0, ""
	}
	return member, found[2]
}
