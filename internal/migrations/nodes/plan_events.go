package nodes

import (
	"context"
	"net"
	"net/netip"
	"net/url"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// A second etcd, in which API servers keep events, has a member on each machine of the control plane as the first one does. Its members
// change by the same rules, one after another, between proofs that all of both are well. Nodes are known by their members of the first
// etcd, and these members by the machine.

// healthy waits until every member of every etcd is. Those of but are members of the first one.
func (cp *controlPlane) healthy(when string, c *ControlPlaneNode, but ...string) []engine.Step {
	steps := []engine.Step{cp.etcd.HealthyStep(when+"/"+c.Name, but...)}
	if cp.events != nil {
		var exempt []string
		if when == "before" {
			exempt = cp.survey.eventsInTransition(c)
		}
		steps = append(steps, cp.events.HealthyStep(when+"/"+c.Name, exempt...))
	}
	return steps
}

// healthyJoined does so when a successor has come and its predecessor may have ended, as a run finds it that is taken up again.
func (cp *controlPlane) healthyJoined(c *ControlPlaneNode) []engine.Step {
	if cp.spec.external() {
		return cp.healthy("joined", c)
	}
	steps := []engine.Step{cp.etcd.HealthyStep("joined/"+c.Name, c.Name)}
	if cp.events != nil {
		steps = append(steps, cp.events.HealthyStep("joined/"+c.Name, cp.survey.eventsLeaving(c)...))
	}
	return steps
}

// eventsLeaving is what the second etcd calls the member of a node; nothing, if it has none there.
func (s *Survey) eventsLeaving(c *ControlPlaneNode) []string {
	if m := s.eventsMember(c); m != nil {
		return []string{m.Called()}
	}
	return nil
}

// eventsInTransition are inTransition of the second etcd.
func (s *Survey) eventsInTransition(c *ControlPlaneNode) []string {
	all := s.eventsLeaving(c)
	if m := s.eventsSuccessor(c); m != nil {
		all = append(all, m.PeerURLs[0])
	}
	if c.EventsSuccessor != nil {
		all = append(all, c.EventsSuccessor.Name, c.EventsSuccessor.PeerURL)
	}
	return all
}

// eventsVote makes the second etcd of a successor a member, and gives it its vote. A machine without one needs none in its stead.
func (cp *controlPlane) eventsVote(c *ControlPlaneNode) []engine.Step {
	if cp.survey.eventsMember(c) == nil {
		return nil
	}
	find := func(ctx context.Context) (*v1alpha1.MemberStatus, error) { return cp.eventsSuccessor(ctx, c.Name) }
	return []engine.Step{
		&memberStep{
			live: cp.live, id: "events-learner/" + c.Name, of: c.Name, find: find,
			title: "Add the events etcd of " + c.Name + "'s successor without a vote",
			step:  func(m *v1alpha1.MemberStatus) engine.Step { return cp.events.LearnerStep(m.Name, m.PeerURL) },
		},
		&memberStep{
			live: cp.live, id: "events-vote/" + c.Name, of: c.Name, find: find, title: "Give it its vote once it has caught up",
			step: func(m *v1alpha1.MemberStatus) engine.Step { return cp.events.PromotedStep(m.Name, m.PeerURL) },
		},
	}
}

// eventsSuccessor is the member of the second etcd that was named for a node, or that has joined on the machine of its successor.
func (cp *controlPlane) eventsSuccessor(ctx context.Context, name string) (*v1alpha1.MemberStatus, error) {
	successor, err := cp.record().successor(ctx, name)
	if err != nil {
		return nil, err
	}
	all, err := cp.record().nodes(ctx)
	if err != nil {
		return nil, err
	}
	if n := nodeRecord(all, name); n != nil && n.EventsSuccessor != nil {
		return n.EventsSuccessor, nil
	}
	now, err := cp.events.Load(ctx)
	if err != nil {
		return nil, err
	}
	at := within([]string{successor.PeerURL}, cp.spec.New.CIDRs)
	m := memberAt(now, at, cp.spec.New.CIDRs)
	if m == nil {
		return nil, engine.NotYet("no member of the events etcd has joined at %s", at)
	}
	return &v1alpha1.MemberStatus{Name: m.Called(), PeerURL: m.PeerURLs[0]}, nil
}

// eventsRemoved takes the member on a node's machine out for good.
func (cp *controlPlane) eventsRemoved(c *ControlPlaneNode) []engine.Step {
	m := cp.survey.eventsMember(c)
	if m == nil {
		return nil
	}
	return []engine.Step{
		cp.events.HandedOverStep(m.Called(), cp.survey.eventsNames()...),
		cp.events.RemovedStep(m.Called(), cp.survey.eventsVoters()),
	}
}

// eventsMayStop has the second etcd be ready for a machine that is stopped.
func (cp *controlPlane) eventsMayStop(c *ControlPlaneNode) []engine.Step {
	m := cp.survey.eventsMember(c)
	if m == nil {
		return nil
	}
	var known []string
	if c.Successor != nil {
		known = append(known, cp.eventsReturn(m.PeerURLs, c.EventsSuccessor, c.Successor).PeerURL)
	}
	return []engine.Step{
		cp.events.HandedOverStep(m.Called(), cp.survey.eventsNames()...),
		cp.events.MayStopStep(m.Called(), known...),
	}
}

// eventsStopped fails as long as the member on a node's machine answers there.
func (cp *controlPlane) eventsStopped(ctx context.Context, c *ControlPlaneNode) error {
	was := cp.survey.eventsMember(c)
	if was == nil {
		return nil
	}
	now, err := cp.events.Load(ctx)
	if err != nil {
		return err
	}
	if m := now.Find(was.Called()); m != nil && m.Healthy && !within(m.PeerURLs, cp.spec.New.CIDRs).IsValid() {
		return engine.NotYet("the events etcd of control-plane node %s still answers", c.Name)
	}
	return nil
}

// eventsReaddressed tells the others where the member of a machine comes back.
func (cp *controlPlane) eventsReaddressed(c *ControlPlaneNode) []engine.Step {
	m := cp.survey.eventsMember(c)
	if m == nil {
		return nil
	}
	return []engine.Step{&memberStep{
		live: cp.live, id: "events-address/" + c.Name, of: c.Name,
		title: "Change the peer URL of " + c.Name + "'s events etcd to the one where it comes back",
		find: func(ctx context.Context) (*v1alpha1.MemberStatus, error) {
			successor, err := cp.record().successor(ctx, c.Name)
			if err != nil {
				return nil, err
			}
			all, err := cp.record().nodes(ctx)
			if err != nil {
				return nil, err
			}
			return cp.eventsReturn(m.PeerURLs, nodeRecord(all, c.Name).EventsSuccessor, successor), nil
		},
		step: func(to *v1alpha1.MemberStatus) engine.Step { return cp.events.ReaddressedStep(m.Called(), to.PeerURL) },
	}}
}

// eventsReturn is where the second etcd of a machine comes back: as it was named, or at the address of the first one, at the port that it had.
func (cp *controlPlane) eventsReturn(was []string, named, successor *v1alpha1.MemberStatus) *v1alpha1.MemberStatus {
	if named != nil {
		return named
	}
	to := *successor
	for _, text := range was {
		u, err := url.Parse(text)
		if host := within([]string{successor.PeerURL}, cp.spec.New.CIDRs); err == nil && host.IsValid() {
			to.PeerURL = (&url.URL{Scheme: u.Scheme, Host: hostPort(host, u.Port())}).String()
		}
	}
	return &to
}

func hostPort(host netip.Addr, port string) string {
	if port == "" {
		return host.String()
	}
	return net.JoinHostPort(host.String(), port)
}
