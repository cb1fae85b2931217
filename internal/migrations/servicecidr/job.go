package servicecidr

import (
	"context"
	"errors"
	"net/netip"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Job runs one Migration.
type Job struct {
	Tools     Tools
	Migration *v1alpha1.Migration
	Spec      Spec

	// Until is the phase to stop after; empty means to go on to the end.
	Until string
	// Holder is who holds the lock. Default: this process.
	Holder *lease.Holder
	// Expected is the plan that apply must not go beyond, if somebody has looked at one.
	Expected *migration.Expectation
	// LeaveClients has finish not wait until nobody uses old addresses.
	LeaveClients bool

	agentConfig lossguard.AgentConfig
	observer    Observer
	access      []cluster.AccessAnswer
	inspection  *cluster.Inspection
	recorded    *v1alpha1.Migration
	changes     []spec.Change
	lookup      *tier.Cache
}

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Tools: tools, Migration: m, Spec: s}
	return j, j.hasImage()
}

// Adopt compares the Migration at hand with the one in the cluster, if there is one, and takes over what that one
// has settled. A different job under the same name is refused.
func (j *Job) Adopt(ctx context.Context) (*v1alpha1.Migration, error) {
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	have, err := migration.Get(ctx, j.Tools.Cluster, j.Migration.Name)
	if err != nil || have == nil {
		return nil, err
	}
	whole := have.DeepCopy() // somebody may have created it with kubectl, where nothing is filled in
	Default(whole)
	if j.Migration, j.changes, err = spec.Merge(whole, j.Migration); err != nil {
		return nil, err
	}
	if j.Spec, err = Validate(j.Migration); err != nil {
		return nil, err
	}
	j.recorded = have
	return have, nil
}

// Examine looks at the cluster, as far as the user's rights go, and makes the planner of the migration.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if _, err := j.Tools.Cluster.ServerVersion(ctx); err != nil {
		return nil, err
	}
	if err := j.authorize(ctx); err != nil {
		return nil, err
	}
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	return j.planner(ctx, snap)
}

// authorize asks for the user's rights once. Without those to look there is nothing to check; the others are a finding.
func (j *Job) authorize(ctx context.Context) (err error) {
	if j.access != nil {
		return nil
	}
	j.access, err = j.Tools.Cluster.Authorize(ctx, append(Rights(), j.agents().Rights()...), func(r cluster.Right) bool {
		return r.Verb == "list" && r.Resource != "endpointslices" || r.Resource == "migrations"
	})
	return err
}

func (j *Job) planner(ctx context.Context, snap *cluster.Snapshot) (*Planner, error) {
	survey, rules, err := j.survey(ctx, snap)
	if err != nil {
		return nil, err
	}
	in := Input{Snapshot: snap, Survey: survey, Live: cluster.Live{Access: j.access}}
	if err := j.live(ctx, &in); err != nil {
		return nil, err
	}
	p := &Planner{
		Tools: j.Tools, Survey: survey, Migration: j.Migration.DeepCopy(),
		LeaveClients: j.LeaveClients, Observer: j.observer, CanFreeze: in.Freeze == nil, Distribution: cluster.DistributionOf(snap.Nodes),
	}
	j.newAgents(p, len(snap.Nodes))
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	p.Findings = findings.Run(Checks(), in)
	form, ok := bridge.Choose(j.Spec.Bridge, len(survey.Moves), in.Live.Admitted)
	if !ok {
		form = bridge.Candidates(j.Spec.Bridge, len(survey.Moves))[0]
	}
	p.Form = form
	if err := j.record(ctx, p); err != nil {
		return nil, err
	}
	d := forth
	if j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack {
		d = back
	}
	r := refresher{tools: j.Tools, survey: survey, rules: rules}
	p.Refresh, err = r.plan(ctx, changes(survey, j.Migration, d, j.Tools.now()))
	if apierrors.IsForbidden(err) { // the rights check says so
		return p, nil
	}
	return p, err
}

// survey looks at the Services and sorts them into tiers, asking the lookup about those that no rule names.
func (j *Job) survey(ctx context.Context, snap *cluster.Snapshot) (*Survey, tier.Rules, error) {
	survey := Look(snap, j.Spec)
	if len(survey.Spec.To) == 0 {
		return nil, tier.Rules{}, &SpecError{
			Field: "spec.serviceCIDR.to", Problem: "there is no other ready Service range for the Services to go to",
			Hint: "name one, or add one first with mode: Extend",
		}
	}
	rules, err := tier.NewRules(&j.Spec.Common, survey.isClusters)
	if err != nil {
		return nil, rules, err
	}
	services := survey.movers()
	var answers map[types.NamespacedName]string
	if questions := tier.Questions(services, rules); len(questions) > 0 {
		if j.lookup == nil {
			j.lookup = tier.NewCache(j.Tools.Now)
		}
		if answers, err = j.lookup.Lookup(ctx, *j.Spec.Common.TierLookup, questions, rules.Names()); err != nil {
			return nil, rules, err
		}
	}
	survey.assign(tier.Assign(services, rules, answers))
	return survey, rules, nil
}

// record settles what the Migration in the cluster shall say: all that was resolved, or, once it is there, the job as it
// was written then, which cannot be changed.
func (j *Job) record(ctx context.Context, p *Planner) error {
	crd, err := j.Tools.Cluster.CRD(ctx)
	if err != nil && !apierrors.IsForbidden(err) { // the rights check says so
		return err
	}
	p.HasCRD, p.Recorded, p.Changes = crd != nil, j.recorded != nil, j.changes
	if p.Recorded {
		p.Migration.Spec.ServiceCIDR = j.recorded.Spec.ServiceCIDR.DeepCopy()
		return nil
	}
	p.Migration.Spec.ServiceCIDR.From = texts(p.Survey.Spec.From)
	p.Migration.Spec.ServiceCIDR.To = texts(p.Survey.Spec.To)
	return nil
}

func texts(ranges []netip.Prefix) []string {
	var all []string
	for _, r := range ranges {
		all = append(all, r.String())
	}
	return all
}

// live asks what only the running cluster can tell.
func (j *Job) live(ctx context.Context, in *Input) error {
	survey, admitted := in.Survey, map[v1alpha1.BridgeForm]error{}
	in.Live.Admitted = admitted
	var mu sync.Mutex
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	for _, form := range bridge.Candidates(j.Spec.Bridge, len(survey.Moves)) {
		for _, svc := range onePerNamespace(survey.Pending()) { // those that moved have their bridges
			eg.Go(func() error {
				refused, err := bridge.Try(ctx, j.Tools.Cluster, form, svc.Service, svc.New)
				mu.Lock()
				defer mu.Unlock()
				if admitted[form] == nil {
					admitted[form] = refused
				}
				return unlessForbidden(err)
			})
		}
	}
	eg.Go(func() error { return unlessForbidden(j.inspect(ctx, in)) })
	eg.Go(func() error {
		if j.Spec.Common.Freeze == v1alpha1.FreezeDisabled {
			return nil
		}
		err := freeze.Possible(ctx, j.Tools.Cluster, j.Spec.Name)
		if unavailable := (*freeze.UnavailableError)(nil); errors.As(err, &unavailable) || apierrors.IsForbidden(err) {
			in.Freeze = err
			return nil
		}
		return err
	})
	return eg.Wait()
}

// inspect looks through the rest of the cluster, once in a job: what is written down in it does not change by what the
// job does, and in a large cluster it is a lot.
func (j *Job) inspect(ctx context.Context, in *Input) error {
	if j.inspection == nil {
		scanner, err := Scanner(in.Survey)
		if err != nil {
			return err
		}
		if j.inspection, err = j.Tools.Cluster.References(ctx, scanner); err != nil {
			return err
		}
	}
	in.Live.Inspection = j.inspection
	return nil
}

// unlessForbidden leaves it to the rights check to say what the user may not do.
func unlessForbidden(err error) error {
	if apierrors.IsForbidden(err) {
		return nil
	}
	return err
}

func onePerNamespace(entries []*Entry) []*Entry {
	var out []*Entry
	seen := map[string]bool{}
	for _, e := range entries {
		if !seen[e.Service.Namespace] && e.New.IsValid() {
			seen[e.Service.Namespace] = true
			out = append(out, e)
		}
	}
	return out
}

// Look surveys the cluster as it is now.
func (j *Job) Look(ctx context.Context) (*Survey, error) {
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	survey, _, err := j.survey(ctx, snap)
	return survey, err
}
