package nodes

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
)

// emptyStep sees that nothing is left on old nodes. It writes nothing.
type emptyStep struct {
	tools Tools
	spec  Spec
}

func (*emptyStep) ID() string    { return "verify/empty" }
func (*emptyStep) Title() string { return "See that nothing is left on old nodes" }
func (*emptyStep) Waits()        {}

func (*emptyStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*emptyStep) Do(context.Context) error                    { return nil }

func (s *emptyStep) Verify(ctx context.Context) error {
	now, err := s.tools.look(ctx, s.spec)
	if err != nil {
		return err
	}
	for _, l := range now.Leaving() {
		if stage := l.Stage(); stage == StageServing || stage == StageClosed {
			if len(l.Pods) > 0 {
				return engine.NotYet("node %s still has pod %s/%s", l.Name, l.Pods[0].Namespace, l.Pods[0].Name)
			}
			return engine.NotYet("node %s takes new pods", l.Name)
		}
	}
	return nil
}

// aloneStep sees that nothing of the control plane is left in the old network. It writes nothing.
type aloneStep struct{ planner *Planner }

func (*aloneStep) ID() string { return "verify/control-plane" }
func (*aloneStep) Title() string {
	return "See that nothing of the control plane is left in the old network"
}
func (*aloneStep) Waits() {}

func (*aloneStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*aloneStep) Do(context.Context) error                    { return nil }

func (s *aloneStep) Verify(ctx context.Context) error {
	p := s.planner
	now, err := p.Etcd.Look(ctx)
	if err != nil {
		return err
	}
	for i := range now.Members {
		if at := within(now.Members[i].PeerURLs, p.spec().Old.CIDRs); at.IsValid() {
			return fmt.Errorf("etcd member %s is still at %s", now.Members[i].Called(), at)
		}
	}
	servers, err := p.Tools.servers(ctx)
	if err != nil {
		return err
	}
	for _, a := range servers {
		if slices.ContainsFunc(p.spec().Old.CIDRs, func(c netip.Prefix) bool { return c.Contains(a.Addr()) }) {
			return engine.NotYet("the API server at %s is still an endpoint of service default/kubernetes", a)
		}
	}
	return nil
}

// verify is what apply ends with, and finish begins with.
func (p *Planner) verify() []engine.Group {
	steps := []engine.Step{&emptyStep{tools: p.Tools, spec: p.spec()}}
	if p.Etcd != nil {
		steps = append(steps, &aloneStep{p})
	}
	return inOrder(steps...)
}

// noteStep writes on the Migration how many nodes are empty by now.
type noteStep struct {
	tools Tools
	spec  Spec
	after string
}

func (s *noteStep) ID() string    { return "note/" + s.after }
func (s *noteStep) Title() string { return "Record that " + s.after + " is empty" }

// State implements engine.Step: an earlier note says nothing of now.
func (*noteStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *noteStep) Do(ctx context.Context) error {
	now, err := s.tools.look(ctx, s.spec)
	if err != nil {
		return err
	}
	return migration.UpdateStatus(ctx, s.tools.Cluster, s.spec.Name, func(st *v1alpha1.MigrationStatus) { st.Counts = now.Counts() })
}

func (*noteStep) Verify(context.Context) error { return nil }
