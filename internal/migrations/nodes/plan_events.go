package nodes

import (
	"context"
	"net"
	"net/netip"
	"net/url"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// A second etcd, for events, has a member on each machine of the control plane. Its members change
// one after another, between proofs that both etcds are well, and are known by their machine.

// healthy waits until every member of every etcd is. Those of but are members of the first one.
func (cp *controlPlane) healthy(when string, c *ControlPlaneNode, but ...string) []engine.Step {
	steps := []engine.Step{cp.etcd.HealthyStep(when+"/"+c.Name, but...)}
	if cp.events != nil {
		var exempt []string
		if when == "before" {
			exempt = cp.survey.ControlPlane().eventsInTransition(c)
		}
		steps = append(steps, cp.events.HealthyStep(when+"/"+c.Name, exempt...))
	}
	return steps
}

// healthyJoined does so once a successor has come and its predecessor may have ended.
func (cp *controlPlane) healthyJoined(c *ControlPlaneNode) []engine.Step {
	if cp.spec.external() {
		return cp.healthy("joined", c)
	}
	steps := []engine.Step{cp.etcd.HealthyStep("joined/"+c.Name, c.Name)}
	if cp.events != nil {
		steps = append(steps, cp.events.HealthyStep("joined/"+c.Name, cp.survey.ControlPlane().eventsLeaving(c)...))
	}
	return steps
}

// eventsVote makes the second etcd of a successor a member, and gives it its vote.
func (cp *controlPlane) eventsVote(c *ControlPlaneNode) []engine.Step {
	if cp.survey.ControlPlane().eventsMember(c) == nil {
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

// eventsSuccessor is the named member of the second etcd, or that on the successor's machine.
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

func (cp *controlPlane) eventsRemoved(c *ControlPlaneNode) []engine.Step {
	m := cp.survey.ControlPlane().eventsMember(c)
	if m == nil {
		return nil
	}
	return []engine.Step{
		cp.events.HandedOverStep(m.Called(), cp.survey.ControlPlane().eventsNames()...),
		cp.events.RemovedStep(m.Called(), cp.survey.ControlPlane().eventsVoters()),
	}
}

func (cp *controlPlane) eventsMayStop(c *ControlPlaneNode) []engine.Step {
	m := cp.survey.ControlPlane().eventsMember(c)
	if m == nil {
		return nil
	}
	var known []string
	if c.Successor != nil {
		known = append(known, cp.eventsReturn(m.PeerURLs, c.EventsSuccessor, c.Successor).PeerURL)
	}
	return []engine.Step{
		cp.events.HandedOverStep(m.Called(), cp.survey.ControlPlane().eventsNames()...),
		cp.events.MayStopStep(m.Called(), known...),
	}
}

func (cp *controlPlane) eventsStopped(ctx context.Context, c *ControlPlaneNode) error {
	was := cp.survey.ControlPlane().eventsMember(c)
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

func (cp *controlPlane) eventsReaddressed(c *ControlPlaneNode) []engine.Step {
	m := cp.survey.ControlPlane().eventsMember(c)
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

// eventsReturn is where the second etcd of a machine comes back: as named, or beside the first one.
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
