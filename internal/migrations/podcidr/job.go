package podcidr

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/migrations/podcidr/pools"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Deps are what steps work with. Plans can be made and shown without them.
type Deps = migration.Deps

// Plans are the plans of one look at the cluster.
type Plans = podmove.Plans

// Job runs one Migration.
type Job struct {
	*migration.Job[Plans]
	migration.Subject
	lossguard.Watched

	Tools Deps
	Spec  Spec

	proven bool
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Deps, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Tools: tools, Subject: migration.Subject{Migration: m}, Spec: s}
	j.Job = &migration.Job[Plans]{
		Kind: j, Client: tools.Client(), Name: s.Name, Guard: j.agents(), Now: tools.Now, Directed: tools.Directed,
	}
	return j, j.agents().Check()
}

func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools, j.Spec.Name, &j.Spec.Common)
}

// newAgents makes agents whose pods move like all others. Calico drops packets when it moves
// tunnels by itself (RP2306).
func (j *Job) newAgents(s podmove.Strategy) *lossguard.Agents {
	a := j.agents().New(len(s.Shared().Nodes))
	if a != nil {
		a.Roll, a.Lossy = true, s.Overlaid()
	}
	return a
}

// Adopt takes over what is recorded, and refuses a different job under the same name.
func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if err := j.TakeOver(have); err != nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

func (j *Job) Examine(ctx context.Context) (Plans, error) {
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	strategy, p, err := j.look(ctx)
	if err != nil {
		return nil, err
	}
	facts, err := j.facts(ctx, strategy)
	if err != nil {
		return nil, err
	}
	if facts.AbsentSecrets, err = j.absentSecrets(ctx, j.Tools.Cluster, p, strategy); err != nil {
		return nil, err
	}
	p.Findings = append(strategy.Check(facts), p.Findings...)
	return strategy.Plans(p), nil
}

// look makes a planner of the cluster as it is now.
func (j *Job) look(ctx context.Context) (podmove.Strategy, *podmove.Planner, error) {
	strategy, err := j.Inventory(ctx)
	if err != nil {
		return nil, nil, err
	}
	p, err := j.planner(ctx, strategy)
	return strategy, p, err
}

// Unfinished takes a node back first whose way back was cut off.
func (j *Job) Unfinished(ctx context.Context, to v1alpha1.DesiredState) (*engine.Plan, error) {
	nodes := &corev1.NodeList{}
	if err := j.Tools.Cluster.List(ctx, nodes); err != nil {
		return nil, fmt.Errorf("looking for nodes on their way back: %w", err)
	}
	if !noderanges.Returning(nodes.Items) {
		return nil, nil
	}
	strategy, p, err := j.look(ctx)
	if err != nil {
		return nil, err
	}
	if on, ok := strategy.Plans(p).(*noderanges.Planner); ok {
		return on.Return(to), nil
	}
	return nil, nil
}

// Inventory looks at the cluster as it is now, and finds out how it gives pods their addresses.
func (j *Job) Inventory(ctx context.Context) (podmove.Strategy, error) {
	state, err := pools.LoadCalico(ctx, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	shared, err := podmove.Load(ctx, j.Tools.Cluster, j.Spec)
	if err != nil {
		return nil, err
	}
	shared.Workloads.KnowTakenBack(j.Migration.Status.TakenBack)
	if state == nil {
		return noderanges.Load(ctx, j.Tools.Cluster, shared)
	}
	return pools.Load(ctx, j.Tools.Cluster, shared, state)
}

func (j *Job) planner(ctx context.Context, s podmove.Strategy) (*podmove.Planner, error) {
	base, err := j.Base(ctx, j.Tools)
	if err != nil {
		return nil, err
	}
	rules, err := tier.NewRules(&j.Spec.Common, ownServices)
	if err != nil {
		return nil, err
	}
	p := &podmove.Planner{Base: base, Inventory: s.Shared(), Rules: rules, Agents: j.newAgents(s), Proven: j.proven}
	p.OnProof = func() { j.proven = true }
	p.Migration.Spec.PodCIDR.From = podmove.Texts(p.Inventory.Spec.From)
	found, err := p.Agents.Try(ctx, &j.Subject, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	p.Findings = append(p.Findings, found...)
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	return p, nil
}

func (j *Job) absentSecrets(
	ctx context.Context,
	in client.Reader,
	p *podmove.Planner,
	s podmove.Strategy,
) ([]findings.Result, error) {
	switch {
	case p.Tries():
		return p.Image().Needed(ctx, in, ", or set "+podmove.Field+".canary.mode: Disabled")
	case s.KeepsTunnels():
		return p.Image().Needed(ctx, in, ", or set "+podmove.Field+".tunnels.mode: Leave")
	}
	return j.agents().AbsentSecrets(ctx, in)
}

func ownServices(svc *corev1.Service) bool { return svc.Namespace == metav1.NamespaceSystem }

// facts are what checks look at beside the survey.
func (j *Job) facts(ctx context.Context, s podmove.Strategy) (f podmove.Facts, err error) {
	if f.Others, err = migration.List(ctx, j.Tools.Cluster); err != nil {
		return f, err
	}
	none := func(access.Right) bool { return false }
	further, err := j.Tools.Cluster.Authorize(ctx, s.Roles(), none)
	if err != nil {
		return f, err
	}
	f.Live.Access = slices.Concat(j.Access, further)
	ranges := &networkingv1.ServiceCIDRList{}
	err = j.Tools.Cluster.List(ctx, ranges)
	if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) && !meta.IsNoMatchError(err) {
		return f, fmt.Errorf("listing servicecidrs: %w", err)
	}
	f.ServiceCIDRs = ranges.Items
	survey := s.Shared()
	scanner, err := references.New(survey.Spec.From, survey.Spec.To, nil)
	if err != nil {
		return f, fmt.Errorf("looking for old ranges: %w", err)
	}
	f.Live.Inspection, err = inventory.References(ctx, j.Tools.Cluster, scanner)
	return f, err
}
