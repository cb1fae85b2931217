package nodes

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// comeBack stops a control plane and has it come back in the new network, under its name and with its data.
func (p *Planner) comeBack(c *Chief, leaving []string) []engine.Step {
	var known []string
	if c.Successor != nil {
		known = append(known, c.Successor.PeerURL)
	}
	steps := append([]engine.Step{p.Etcd.HealthyStep("before/"+c.Name, p.successorOf(c)...)}, p.emptied(c.Name)...)
	return append(steps,
		p.retire(c),
		p.Etcd.HandedOverStep(c.Name, leaving...),
		p.Etcd.MayStopStep(c.Name, known...),
		p.stop(c),
		p.provision(c),
		p.late("address/"+c.Name, "Tell the others where the etcd of "+c.Name+" comes back", c, func(m *v1alpha1.MemberStatus) engine.Step {
			return p.Etcd.ReaddressedStep(c.Name, m.PeerURL)
		}),
		&servesStep{planner: p, of: c.Name},
		p.Etcd.HealthyStep("after/"+c.Name),
		&openStep{p.node(c.Name)},
		&backStep{tools: p.Tools, spec: p.spec(), name: c.Name},
	)
}

// stop ends the machine of a control plane for as long as it takes to come back elsewhere.
func (p *Planner) stop(c *Chief) engine.Step {
	status := c.NodeStatus
	return &outside{
		id: "terminate/" + c.Name, title: "Stop control plane " + c.Name, wait: p.spec().GateWait, action: p.spec().ControlPlane.Terminate,
		guide:   "Stop the machine of control plane " + c.Name + ", and keep the data of its etcd. replumb goes on by itself.",
		request: p.controlRequest(actionTerminate, &status),
		done: func(ctx context.Context) error {
			now, err := p.Etcd.Look(ctx)
			if err != nil {
				return err
			}
			m := now.Find(c.Name)
			if m != nil && m.Healthy && !within(m.PeerURLs, p.spec().New.CIDRs).IsValid() {
				return engine.NotYet("the etcd of control plane %s still answers", c.Name)
			}
			return nil
		},
	}
}

// backStep writes down that a control plane has come back.
type backStep struct {
	tools Tools
	spec  Spec
	name  string
}

func (s *backStep) ID() string { return "back/" + s.name }
func (s *backStep) Title() string {
	return "Write down that control plane " + s.name + " has come back"
}

func (s *backStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *backStep) Do(ctx context.Context) error { return s.tools.noteGone(ctx, s.spec.Name, s.name) }

func (s *backStep) Verify(ctx context.Context) error {
	now, err := s.tools.remembered(ctx, s.spec)
	if n := remembered(now.Remembered, s.name); err == nil && (n == nil || !n.Gone) {
		return engine.NotYet("it is not written down that %s has come back", s.name)
	}
	return err
}

// noteGone writes down that the old machine of a control plane has ended.
func (t Tools) noteGone(ctx context.Context, of, name string) error {
	return migration.UpdateStatus(ctx, t.Cluster, of, func(st *v1alpha1.MigrationStatus) {
		if n := remembered(st.Nodes, name); n != nil {
			n.Gone = true
		}
	})
}
