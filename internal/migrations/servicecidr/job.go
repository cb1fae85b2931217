package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Tools are what steps work with. Plans can be made and shown without a cluster.
type Tools struct {
	migration.Tools
	// Probe asks nodes what they know, Inspector API servers how they run.
	Probe     bridge.NodeProbe
	Inspector Inspector
}

// HealthPort asks kube-proxy's health-check server of a node through the API server.
type HealthPort struct {
	Cluster *cluster.Cluster
}

var _ bridge.NodeProbe = HealthPort{}

// Ask implements bridge.NodeProbe.
func (h HealthPort) Ask(ctx context.Context, node string, port int32) ([]byte, error) {
	return h.Cluster.GetRaw(ctx, fmt.Sprintf("/api/v1/nodes/%s:%d/proxy/", node, port))
}

// Job runs one Migration.
type Job struct {
	migration.Subject
	*migration.Job[*Planner]

	Tools Tools
	Spec  Spec
	// Silent calls nothing that the Migration names: it is for looking alone.
	Silent bool
	// LeaveClients has finish not wait for clients of old addresses.
	LeaveClients bool

	agentConfig lossguard.AgentConfig
	observer    Observer
	inspection  *cluster.Inspection
	lookup      *tier.Cache
}

var (
	_ migration.Kind[*Planner] = (*Job)(nil)
	_ migration.Authorizer     = (*Job)(nil)
	_ migration.Turner         = (*Job)(nil)
	_ migration.Retrier        = (*Job)(nil)
)

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Tools, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Subject: migration.Subject{Migration: m}, Tools: tools, Spec: s}
	j.Job = &migration.Job[*Planner]{Kind: j, Client: tools.Client(), Name: s.Name, Escort: j.agents(), Now: tools.Now}
	return j, j.checkAgents()
}

// MayLook implements migration.Authorizer: it asks for the user's rights, once. Without those to look there is nothing to check;
// the others are a finding.
func (j *Job) MayLook(ctx context.Context) error {
	return j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook)
}

// Adopt implements migration.Kind.
func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if err := j.TakeOver(have); err != nil || have == nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

// Turn implements migration.Turner. When the migration turns, what was seen of the kubelets holds no more.
func (j *Job) Turn(ctx context.Context, have *v1alpha1.Migration, to v1alpha1.DesiredState) error {
	j.Migration.Spec.Desired = to
	turns := (have.Spec.Desired == v1alpha1.DesiredRolledBack) != (to == v1alpha1.DesiredRolledBack)
	if have.Status.NodesRepointedAt == nil || !turns {
		return nil
	}
	j.Migration.Status.NodesRepointedAt = nil
	return migration.UpdateStatus(ctx, j.Tools.Cluster, have.Name, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = nil })
}

// AnotherRound implements migration.Retrier: Services that appeared in the range that was to be retired are moved.
func (j *Job) AnotherRound(ctx context.Context, err error) bool {
	if !errors.As(err, new(*RangeInUseError)) {
		return false
	}
	s, err := j.Survey(ctx)
	return err == nil && len(s.Pending()) > 0
}

// Survey looks at the Services as they are now.
func (j *Job) Survey(ctx context.Context) (*Survey, error) {
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	survey, _, err := j.survey(ctx, snap)
	return survey, err
}

// Examine implements migration.Kind. It looks as far as the user's rights go.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if _, err := j.Tools.Cluster.ServerVersion(ctx); err != nil {
		return nil, err
	}
	if err := j.MayLook(ctx); err != nil {
		return nil, err
	}
	snap, err := j.Tools.Cluster.Load(ctx)
	if err != nil {
		return nil, err
	}
	survey, rules, err := j.survey(ctx, snap)
	if err != nil {
		return nil, err
	}
	in := Input{Snapshot: snap, Survey: survey, Live: cluster.Live{Access: j.Access}, Image: j.agents().Image().Name}
	if err := j.live(ctx, &in); err != nil {
		return nil, err
	}
	p, err := j.planner(ctx, in)
	if err != nil {
		return nil, err
	}
	to := engine.Forward
	if j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack {
		to = engine.Backward
	}
	r := refresher{tools: j.Tools.Tools, survey: survey, rules: rules}
	p.Refresh, err = r.plan(ctx, changes(survey, j.Migration, to, j.Tools.Now()))
	if apierrors.IsForbidden(err) { // the rights check says so
		return p, nil
	}
	return p, err
}

// planner makes the planner of what was seen, without what is to be restarted.
func (j *Job) planner(ctx context.Context, in Input) (*Planner, error) {
	base, err := j.Base(ctx, j.Tools.Tools)
	if err != nil {
		return nil, err
	}
	base.Findings = findings.Run(Checks(), in)
	j.settle(base.Migration.Spec.ServiceCIDR, in.Survey.Spec)
	p := &Planner{
		Base: base, Probe: j.Tools.Probe, Inspector: j.Tools.Inspector, Survey: in.Survey, Observer: j.observer,
		LeaveClients: j.LeaveClients, CanFreeze: in.Freeze == nil, Distribution: cluster.DistributionOf(in.Snapshot.Nodes),
		Agents: j.newAgents(in),
	}
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	form, ok := bridge.Choose(j.Spec.Bridge, len(in.Survey.Moves), in.Live.Admitted)
	if !ok {
		form = bridge.Candidates(j.Spec.Bridge, len(in.Survey.Moves))[0]
	}
	p.Form = form
	return p, nil
}

// settle fills in what the file leaves open, as it was resolved. Once it is recorded, it cannot be changed.
func (j *Job) settle(s *v1alpha1.ServiceCIDRSpec, resolved Spec) {
	if j.Recorded == nil {
		s.From, s.To = texts(resolved.From), texts(resolved.To)
	}
}

func texts(ranges []netip.Prefix) []string {
	var all []string
	for _, r := range ranges {
		all = append(all, r.String())
	}
	return all
}

// survey looks at the Services and sorts them into tiers, asking the lookup about those that no rule names.
func (j *Job) survey(ctx context.Context, snap *cluster.Snapshot) (*Survey, tier.Rules, error) {
	var record Record
	if WantsRecord(snap, j.Spec) {
		var err error
		if record, err = ReadRecord(ctx, j.Tools.Cluster, j.Spec.Name); err != nil {
			return nil, tier.Rules{}, err
		}
	}
	survey := Look(snap, j.Spec, record)
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
	questions := tier.Questions(services, rules)
	if len(questions) > 0 && !j.Silent {
		if j.lookup == nil {
			j.lookup = tier.NewCache(j.Tools.Now)
		}
		if answers, err = j.lookup.Lookup(ctx, *j.Spec.Common.TierLookup, questions, rules.Names()); err != nil {
			return nil, rules, err
		}
	}
	assigned := tier.Assign(services, rules, answers)
	if len(questions) > 0 && j.Silent {
		assigned.Unasked(questions)
	}
	survey.assign(assigned)
	return survey, rules, nil
}

// live asks what only the running cluster can tell.
func (j *Job) live(ctx context.Context, in *Input) error {
	survey, admitted := in.Survey, map[v1alpha1.BridgeForm]error{}
	in.Live.Admitted = admitted
	var mu sync.Mutex
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	mayTry := j.May("create", "", "services")
	if !mayTry {
		in.Live.Untried = "the user may not create Services"
	}
	for _, form := range bridge.Candidates(j.Spec.Bridge, len(survey.Moves)) {
		if !mayTry {
			break
		}
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
	eg.Go(func() (err error) {
		in.AbsentSecrets, err = j.agents().AbsentSecrets(ctx, j.Tools.Cluster)
		return err
	})
	eg.Go(func() error {
		if j.Spec.Common.Freeze == v1alpha1.FreezeDisabled {
			return nil
		}
		err := error(&freeze.UnavailableError{Err: errors.New("the user may not create ValidatingAdmissionPolicies")})
		if j.May("create", "admissionregistration.k8s.io", "validatingadmissionpolicies") {
			err = freeze.Possible(ctx, j.Tools.Cluster, j.Spec.Name)
		}
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

// agents are those that watch the migration.
func (j *Job) agents() *lossguard.AgentConfig {
	c := &j.agentConfig
	c.Cluster, c.Migration, c.Spec, c.Own, c.Now = j.Tools.Cluster, j.Spec.Name, j.Spec.Common.Proof, j.Tools.Image, j.Tools.Now
	c.Services = true
	c.None = j.Spec.Mode == v1alpha1.ModeExtend
	return c
}

// checkAgents refuses agents that there is no image for, and barriers that need agents where there are none.
func (j *Job) checkAgents() error {
	c := j.agents()
	if j.Spec.Barrier != v1alpha1.BarrierAgent || c.None {
		return c.Check()
	}
	if c.Spec.Agents == v1alpha1.AgentsDisabled {
		return &SpecError{
			Field: "spec.serviceCIDR.barrier.mode", Problem: "is Agent, and there are to be no agents",
			Hint: "set barrier.mode: HealthCheck, or let spec.proof.agents be Enabled",
		}
	}
	c.Spec.Agents = v1alpha1.AgentsEnabled
	return c.Check()
}

// newAgents makes the agents of a job, and what follows them; nil, if there are to be none.
func (j *Job) newAgents(in Input) *lossguard.Agents {
	agents := j.agents().New(len(in.Snapshot.Nodes))
	if agents == nil {
		return nil
	}
	agents.Domain = j.Spec.Domain
	agents.Ranges = slices.Concat(in.Survey.Spec.From, in.Survey.Spec.To)
	if len(in.Survey.Pending()) > 0 {
		agents.Pool = cidr.NewPool(in.Survey.Spec.From, in.Survey.Used)
	}
	return agents
}

// Blame returns the error that a run ends with which was stopped by a loss.
func (j *Job) Blame(ctx context.Context, loss *lossguard.LossError) error {
	return j.agents().Blame(ctx, loss)
}

// Observer hears of what happens in runs beside their events.
type Observer interface {
	lossguard.Observer
	// Moved is called for a Service that has arrived at another address, forward or back.
	Moved(service, from, to, strategy string, at time.Time, took time.Duration)
}

// Observe has an observer hear of what happens while runs go on.
func (j *Job) Observe(o Observer) {
	j.observer = o
	j.agentConfig.Observe(o)
}
