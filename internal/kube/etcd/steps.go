package etcd

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

const patient = 15 * time.Minute

// step has a result that shows in what members say.
type step struct {
	client *Client
	id     string
	title  string
	limit  time.Duration
	// missing is what is not yet as it should be; empty once all is.
	missing func(*Membership) string
	// proof, if set, is asked for more than members say.
	proof  func(context.Context) error
	do     func(context.Context) error
	writes []engine.Change
}

func (s *step) ID() string              { return s.client.stepID(s.id) }
func (s *step) Title() string           { return s.client.called(s.title) }
func (s *step) Deadline() time.Duration { return s.limit }

func (s *step) Preview() ([]engine.Change, error) {
	all := slices.Clone(s.writes)
	for i := range all {
		all[i].Object = s.client.called(all[i].Object)
	}
	return all, nil
}

// State tells what is there from what could not be found out: only the former is a reason to act.
func (s *step) State(ctx context.Context) (engine.State, error) {
	cluster, err := s.client.loadAgreed(ctx)
	switch {
	case err != nil:
		return engine.Unknown, err
	case s.missing(cluster) != "":
		return engine.Pending, nil
	case s.proof != nil:
		return engine.StateOf(s.proof(ctx))
	}
	return engine.Done, nil
}

func (s *step) Do(ctx context.Context) error { return s.do(ctx) }

func (s *step) Verify(ctx context.Context) error {
	cluster, err := s.client.loadAgreed(ctx)
	if err != nil {
		return err
	}
	if missing := s.missing(cluster); missing != "" {
		return engine.NotYet("%s: %s", s.client.called("etcd"), missing)
	}
	if s.proof != nil {
		return s.proof(ctx)
	}
	return nil
}

type waitStep struct{ *step }

func (waitStep) Waits() {}

// HealthyStep waits until all members are healthy, without alarms, voting and caught up: the
// precondition and result of each control plane, so that when tells its occurrences apart. It
// leaves out the member in turn, which a killed run may have left stopped or without a vote.
func (c *Client) HealthyStep(when string, but ...string) engine.Step {
	return waitStep{&step{
		client: c, id: "etcd/healthy/" + when, title: "Wait until every member of etcd is healthy", limit: 5 * time.Minute,
		missing: func(cluster *Membership) string { return cluster.Problem(but...) },
		proof:   func(ctx context.Context) error { return c.allCaughtUp(ctx, but) },
		do:      func(context.Context) error { return nil },
	}}
}

func (c *Client) allCaughtUp(ctx context.Context, but []string) error {
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return err
	}
	for _, m := range cluster.except(but) {
		if err := c.caughtUp(ctx, cluster, m); err != nil {
			return err
		}
	}
	return nil
}

type learnerStep struct {
	*step
	name     string
	peerURLs []string
}

// LearnerStep adds a member without a vote, and does not wait for its start, which needs
// InitialCluster.
func (c *Client) LearnerStep(name string, peerURLs ...string) engine.Step {
	return &learnerStep{name: name, peerURLs: peerURLs, step: &step{
		client: c, id: "etcd/learner/" + name, title: fmt.Sprintf("Add etcd member %s, without a vote", name),
		limit: 2 * time.Minute,
		missing: func(cluster *Membership) string {
			if added, _ := cluster.added(MemberChange{Kind: AddLearner, Member: name}, peerURLs); !added {
				return fmt.Sprintf("there is no member %s at %s", name, strings.Join(peerURLs, ","))
			}
			return ""
		},
		do: func(ctx context.Context) error { return c.AddLearner(ctx, name, peerURLs...) },
		writes: []engine.Change{{
			Verb: "create", Object: "etcd member " + name, Body: map[string]any{"peerURLs": peerURLs, "isLearner": true},
		}},
	}}
}

func (s *learnerStep) Undo() engine.Step {
	return s.client.removal("unlearner/"+s.name, fmt.Sprintf("Remove etcd member %s again", s.name), s.peerURLs[0], 0)
}

// PromotedStep waits until an added member has started and caught up, then promotes it.
func (c *Client) PromotedStep(name, peerURL string) engine.Step {
	return &step{
		client: c, id: "etcd/promoted/" + name, title: fmt.Sprintf("Give etcd member %s its vote once it has caught up", name),
		limit: patient,
		missing: func(cluster *Membership) string {
			switch m := cluster.Find(peerURL); {
			case m == nil:
				return fmt.Sprintf("there is no member %s at %s", name, peerURL)
			case m.Learner:
				return fmt.Sprintf("member %s has no vote", name)
			default:
				return ""
			}
		},
		do:     func(ctx context.Context) error { return c.Promote(ctx, peerURL) },
		writes: []engine.Change{{Verb: "patch", Object: "etcd member " + name, Body: map[string]any{"isLearner": false}}},
	}
}

// HandedOverStep has another member lead than this one, if possible one that is not leaving, too.
func (c *Client) HandedOverStep(who string, leaving ...string) engine.Step {
	return &step{
		client: c, id: "etcd/leader/" + who, title: fmt.Sprintf("Move the leadership of etcd away from %s", who), limit: 2 * time.Minute,
		missing: func(cluster *Membership) string {
			if m := cluster.Find(who); m != nil && m.ID == cluster.Leader {
				return fmt.Sprintf("member %s leads", m.Called())
			}
			return ""
		},
		do:     func(ctx context.Context) error { return c.MoveLeaderFrom(ctx, who, leaving...) },
		writes: []engine.Change{{Verb: "patch", Object: "etcd leader", Body: map[string]any{"not": who}}},
	}
}

// RemovedStep takes a member out for good, and leaves at least so many voters.
func (c *Client) RemovedStep(who string, voters int) engine.Step {
	return c.removal("removed/"+who, fmt.Sprintf("Remove etcd member %s", who), who, voters)
}

func (c *Client) removal(id, title, who string, voters int) engine.Step {
	return &step{
		client: c, id: "etcd/" + id, title: title, limit: 2 * time.Minute,
		missing: func(cluster *Membership) string {
			if m, err := cluster.find(who); m != nil || err != nil {
				return fmt.Sprintf("member %s has not been removed", who)
			}
			return ""
		},
		do:     func(ctx context.Context) error { return c.remove(ctx, who, voters) },
		writes: []engine.Change{{Verb: "delete", Object: "etcd member " + who}},
	}
}

// MayStopStep waits until a member may be stopped to come back elsewhere, and not once it has been.
func (c *Client) MayStopStep(who string, peerURLs ...string) engine.Step {
	return &mayStopStep{client: c, who: who, peerURLs: peerURLs}
}

type mayStopStep struct {
	client   *Client
	who      string
	peerURLs []string
}

func (s *mayStopStep) ID() string { return s.client.stepID("etcd/may-stop/" + s.who) }
func (s *mayStopStep) Title() string {
	return s.client.called(fmt.Sprintf("Make sure that the others agree without etcd member %s", s.who))
}
func (*mayStopStep) Waits()                   {}
func (*mayStopStep) Deadline() time.Duration  { return 5 * time.Minute }
func (*mayStopStep) Do(context.Context) error { return nil }

func (s *mayStopStep) State(ctx context.Context) (engine.State, error) {
	return engine.StateOf(s.Verify(ctx))
}

func (s *mayStopStep) Verify(ctx context.Context) error {
	cluster, err := s.client.loadAgreed(ctx)
	if err != nil {
		return err
	}
	m := cluster.Find(s.who)
	if m != nil && (sameURLs(m.PeerURLs, s.peerURLs) || !m.Healthy) && cluster.Allow(MemberChange{Kind: Readdress, Member: s.who}) == nil {
		return nil
	}
	return s.client.MayStop(ctx, s.who)
}

// ReaddressedStep tells the others where a member that was stopped will come back.
func (c *Client) ReaddressedStep(who string, peerURLs ...string) engine.Step {
	return &step{
		client: c,
		id:     "etcd/address/" + who,
		title:  fmt.Sprintf("Tell the others where etcd member %s comes back", who),
		limit:  2 * time.Minute,
		missing: func(cluster *Membership) string {
			if m := cluster.Find(who); m == nil || !sameURLs(m.PeerURLs, peerURLs) {
				return fmt.Sprintf("member %s is not at %s", who, strings.Join(peerURLs, ","))
			}
			return ""
		},
		do:     func(ctx context.Context) error { return c.SetPeerURLs(ctx, who, peerURLs...) },
		writes: []engine.Change{{Verb: "patch", Object: "etcd member " + who, Body: map[string]any{"peerURLs": peerURLs}}},
	}
}

type snapshotStep struct {
	client *Client
	path   string
}

// SnapshotStep saves and verifies a snapshot, unless this run's earlier one is good.
func (c *Client) SnapshotStep(path string) engine.Step { return &snapshotStep{client: c, path: path} }
func (s *snapshotStep) ID() string                     { return s.client.stepID("etcd/snapshot") }
func (s *snapshotStep) Title() string                  { return s.client.called("Save a snapshot of etcd to ") + s.path }
func (*snapshotStep) Deadline() time.Duration          { return patient }

func (s *snapshotStep) State(context.Context) (engine.State, error) {
	info, err := s.client.OwnSnapshot(s.path)
	switch {
	case err != nil:
		return engine.Unknown, err
	case info == nil:
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *snapshotStep) Do(ctx context.Context) error {
	_, err := s.client.Snapshot(ctx, s.path)
	return err
}

func (s *snapshotStep) Verify(context.Context) error {
	info, err := s.client.OwnSnapshot(s.path)
	if err == nil && info == nil {
		err = engine.NotYet("there is no snapshot at %s", s.path)
	}
	return err
}

func (s *snapshotStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "file " + s.path}}, nil
}
