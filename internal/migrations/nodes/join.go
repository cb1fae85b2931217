package nodes

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/hook"
)

// rememberStep writes down which nodes leave, before anything changes: later they cannot be asked.
type rememberStep struct {
	tools Tools
	spec  Spec
	all   []v1alpha1.NodeStatus
}

func (p *Planner) remember() engine.Step {
	s := &rememberStep{tools: p.Tools, spec: p.spec()}
	for _, l := range p.Survey.Leaving() {
		if l.Node != nil {
			s.all = append(s.all, statusOf(l.Node, v1alpha1.RoleWorker))
		}
	}
	return s
}

func (*rememberStep) ID() string { return "secure/nodes" }
func (s *rememberStep) Title() string {
	return fmt.Sprintf("Write down the %s that leave", english.PluralWord(len(s.all), "node", ""))
}

func (s *rememberStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *rememberStep) Do(ctx context.Context) error {
	return migration.UpdateStatus(ctx, s.tools.Cluster, s.spec.Name, func(st *v1alpha1.MigrationStatus) {
		for _, n := range s.all {
			if remembered(st.Nodes, n.Name) == nil {
				st.Nodes = append(st.Nodes, n)
			}
		}
	})
}

func (s *rememberStep) Verify(ctx context.Context) error {
	m, err := migration.Get(ctx, s.tools.Cluster, s.spec.Name)
	if err != nil {
		return err
	}
	for _, n := range s.all {
		if m == nil || remembered(m.Status.Nodes, n.Name) == nil {
			return engine.NotYet("node %s is not written down", n.Name)
		}
	}
	return nil
}

func remembered(all []v1alpha1.NodeStatus, name string) *v1alpha1.NodeStatus {
	for i := range all {
		if all[i].Name == name {
			return &all[i]
		}
	}
	return nil
}

// join waits until there are as many new nodes as there have to be, all where they should be.
func (p *Planner) join() []engine.Group {
	if len(p.Survey.outstanding(false)) == 0 {
		return nil
	}
	want := p.Survey.Wanted()
	about := english.Plural(want, "new node", "")
	steps := []engine.Step{
		&outside{
			id:     "join",
			title:  "Have " + about + " join",
			wait:   p.spec().GateWait,
			action: p.spec().Join.Provision,
			guide: fmt.Sprintf(
				"Make %s in the new network and join %s to the cluster. replumb goes on by itself.",
				about,
				english.PluralWord(want, "it", "them"),
			),
			request: p.request(actionProvision, func(r *Request) { r.Count = want }),
			done:    p.joined,
		},
	}
	for _, n := range p.Survey.Arrived() {
		if taintOf(n) != nil { // of a migration that was taken back
			steps = append(steps, &openStep{nodeStep{tools: p.Tools, spec: p.spec(), name: n.Name}})
		}
	}
	if p.spec().Join.Room == v1alpha1.RoomRequired {
		steps = append(steps, &roomStep{tools: p.Tools, spec: p.spec()})
	}
	if p.spec().Canary.Mode == v1alpha1.PodCanaryRun {
		steps = append(steps, &tryStep{planner: p})
	}
	return inOrder(steps...)
}

func (p *Planner) request(action string, fill func(*Request)) Request {
	r := Request{Migration: p.spec().Name, Run: hook.Apply, Action: action, Role: v1alpha1.RoleWorker}
	fill(&r)
	return r
}

// joined looks for new nodes. One that was chosen and is in another network will not get there by waiting.
func (p *Planner) joined(ctx context.Context) error {
	now := &Survey{Spec: p.spec(), Workloads: p.Survey.Workloads}
	if err := p.Tools.occupants(ctx, now); err != nil {
		return err
	}
	for i := range now.Nodes {
		if n := &now.Nodes[i]; p.spec().New.Has(n) {
			if problem := p.spec().New.Astray(n); problem != "" && len(addresses(n)) > 0 {
				return fmt.Errorf("%s", problem)
			}
		}
	}
	ready, want := now.Ready(), p.Survey.Wanted()
	if len(ready) >= want {
		return nil
	}
	for _, n := range now.Arrived() {
		if !cluster.NodeReady(n) {
			return engine.NotYet("%d of %d new nodes take pods; node %s is not ready: %s", len(ready), want, n.Name, whyNot(n))
		}
	}
	return engine.NotYet("%d of %d new nodes take pods", len(ready), want)
}

// whyNot is what a node's kubelet says of it.
func whyNot(n *corev1.Node) string {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return strings.TrimSpace(c.Reason + " " + c.Message)
		}
	}
	return "its kubelet has not reported"
}

// roomStep proves that everything that leaves has a place. It writes nothing.
type roomStep struct {
	tools Tools
	spec  Spec
}

func (*roomStep) ID() string { return "room" }
func (*roomStep) Title() string {
	return "See that everything that leaves has a place on the new nodes"
}
func (*roomStep) Waits() {}

func (*roomStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }
func (*roomStep) Do(context.Context) error                    { return nil }

func (s *roomStep) Verify(ctx context.Context) error {
	now, err := s.tools.look(ctx, s.spec)
	if err != nil {
		return err
	}
	misfits := now.Room()
	if len(misfits) == 0 {
		return nil
	}
	m := misfits[0]
	more := ""
	if len(misfits) > 1 {
		more = fmt.Sprintf(", and %d pods more", len(misfits)-1)
	}
	return fmt.Errorf("there is no place for pod %s/%s (%s)%s", m.Pod.Namespace, m.Pod.Name, m.Reasons, more)
}

// tryStep tries the new nodes out: which ones there are is known when its turn comes.
type tryStep struct {
	planner *Planner
}

func (*tryStep) ID() string                { return "canary" }
func (*tryStep) Title() string             { return "Try the new nodes out, to old nodes and from them" }
func (*tryStep) Waits()                    {}
func (s *tryStep) Deadline() time.Duration { return s.planner.trial(nil).Deadline() }

func (*tryStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do runs the trial to its end.
func (s *tryStep) Do(ctx context.Context) error {
	p := s.planner
	now, err := p.Tools.look(ctx, p.spec())
	if err != nil {
		return err
	}
	var on []string
	for _, n := range now.Ready() {
		on = append(on, n.Name)
	}
	others := 0
	for _, l := range now.Leaving() {
		if l.Node != nil && cluster.NodeReady(l.Node) && others < witnesses {
			on, others = append(on, l.Name), others+1
		}
	}
	return engine.Drive(ctx, p.trial(on))
}

func (*tryStep) Verify(context.Context) error { return nil }
