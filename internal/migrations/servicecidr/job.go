package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rollout"
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
	// Store, if set, is taken for where API servers keep Services, if the Migration says how that is reached.
	Store Store
}

// HealthPort asks kube-proxy's health-check server of a node through the API server.
type HealthPort struct {
	Cluster *cluster.Cluster
}

var _ bridge.NodeProbe = HealthPort{}

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
	// Late is what a rollback does with Services that were made in the target range.
	Late LateChoice

	late        map[types.UID]bool
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
	j.Job = &migration.Job[*Planner]{
		Kind: j, Client: tools.Client(), Name: s.Name, Escort: j.agents(), Now: tools.Now, Directed: tools.Directed,
	}
	if err := j.checkAgents(); err != nil {
		return j, err
	}
	return j, j.checkOverlap()
}

// MayLook implements migration.Authorizer: it asks for the user's rights, once. Without those to look there is nothing to check;
// the others are a finding.
func (j *Job) MayLook(ctx context.Context) error {
	return j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook)
}

func (j *Job) Adopt(have *v1alpha1.Migration) (err error) {
	if err := j.TakeOver(have); err != nil || have == nil {
		return err
	}
	j.Spec, err = Validate(j.Migration)
	return err
}

func (j *Job) Turn(ctx context.Context, have *v1alpha1.Migration, to v1alpha1.DesiredState) error {
	if to == v1alpha1.DesiredRolledBack {
		if err := j.returnable(ctx); err != nil {
			return err
		}
	}
	j.Migration.Spec.Desired = to
	turns := j.away(have) != (to == v1alpha1.DesiredRolledBack)
	if have.Status.NodesRepointedAt == nil || !turns {
		return nil
	}
	j.Migration.Status.NodesRepointedAt = nil
	return migration.UpdateStatus(ctx, j.Tools.Cluster, have.Name, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = nil })
}

// away reports whether a Migration was on its way back, or back, before the command that begins. Where spec.desired is written by others, it
// says where the command goes to.
func (j *Job) away(have *v1alpha1.Migration) bool {
	if j.Tools.Directed {
		return have.Status.Phase == v1alpha1.PhaseRollingBack || have.Status.Phase == v1alpha1.PhaseRolledBack
	}
	return have.Spec.Desired == v1alpha1.DesiredRolledBack
}

// AnotherRound implements migration.Retrier: Services that appeared in the range that was to be retired are moved, if they have not
// gone by themselves.
func (j *Job) AnotherRound(ctx context.Context, err error) bool {
	if !errors.As(err, new(*RangeInUseError)) {
		return false
	}
	again := false
	look := &engine.Wait{Name: "look", About: "Find users of the range", Again: true, For: func(ctx context.Context) error {
		s, err := j.Survey(ctx)
		again = err == nil && (len(s.Pending()) > 0 || len(s.Blockers()) == 0)
		return err
	}}
	return engine.Drive(ctx, look) == nil && again
}

// Survey looks at the Services as they are now.
func (j *Job) Survey(ctx context.Context) (*Survey, error) {
	snap, err := cluster.Load(ctx, j.Tools.Cluster)
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
	snap, err := cluster.Load(ctx, j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	if err := refuseUpgraded(snap); err != nil {
		return nil, err
	}
	survey, rules, err := j.survey(ctx, snap)
	if err != nil {
		return nil, err
	}
	if j.Recorded != nil {
		survey.Recorded = j.Recorded.CreationTimestamp
	}
	in := Input{
		Snapshot: snap,
		Survey:   survey,
		Live:     cluster.Live{Access: j.Access},
		Image:    j.agents().Image().Name,
		Overlap:  j.overlapImage().Name != "",
	}
	if err := j.live(ctx, &in); err != nil {
		return nil, err
	}
	r := refresher{tools: j.Tools.Tools, survey: survey, rules: rules, of: j.Migration, to: engine.Forward}
	if j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack {
		r.to = engine.Backward
	}
	if in.Workloads, err = j.workloads(ctx, survey); err != nil {
		return nil, err
	}
	var p *Planner // what the steps of refresh ask it for, they ask when they run
	r.workloads, r.departure = in.Workloads, departure(j.Tools.Client(), j.Spec.Name, r.to, func() *Planner { return p })
	refresh, plan := r.plan()
	in.Restarts = plan.Restarts
	survey.setApart(in.found().Called)
	survey.setRouted(in.found().Routes)
	if p, err = j.planner(ctx, in); err != nil {
		return nil, err
	}
	p.Refresh = refresh
	return p, nil
}

// workloads are what may have to be restarted; nil, if nothing moves or the user may not look, which the rights check says.
func (j *Job) workloads(ctx context.Context, survey *Survey) (*rollout.State, error) {
	if len(survey.Moves) == 0 {
		return nil, nil
	}
	state, err := rollout.Load(ctx, j.Tools.Cluster)
	return state, unlessForbidden(err)
}

// planner makes the planner of what was seen, without what is to be restarted.
func (j *Job) planner(ctx context.Context, in Input) (*Planner, error) {
	base, err := j.Base(ctx, j.Tools.Tools)
	if err != nil {
		return nil, err
	}
	base.Findings = append(findings.Run(Checks(), in), base.Findings...)
	j.settle(base.Migration.Spec.ServiceCIDR, in.Survey.Spec)
	p := &Planner{
		Base: base, Probe: j.Tools.Probe, Inspector: j.Tools.Inspector, Survey: in.Survey, Observer: j.observer,
		LeaveClients: j.LeaveClients, CanFreeze: in.Freeze == nil, Origin: cluster.OriginOf(in.Snapshot.Nodes),
		Store: j.store(), Agents: j.newAgents(in), Late: j.returning(in.Survey),
	}
	if p.Remains, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	if err := j.addOverlap(ctx, p); err != nil {
		return nil, err
	}
	p.Forms, p.Form = in.formsOf()
	return p, nil
}

// settle fills in what the file leaves open, as it was resolved. Once it is recorded, it cannot be changed. A Migration that was created by
// other means than a run has it open as well.
func (j *Job) settle(s *v1alpha1.ServiceCIDRSpec, resolved Spec) {
	if j.Recorded == nil || len(s.From) == 0 {
		s.From = texts(resolved.From)
	}
	if j.Recorded == nil || len(s.To) == 0 {
		s.To = texts(resolved.To)
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
	survey, err := j.places(ctx, snap)
	if err != nil {
		return nil, tier.Rules{}, err
	}
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

// places looks at where Services stand.
func (j *Job) places(ctx context.Context, snap *cluster.Snapshot) (*Survey, error) {
	var record Record
	if WantsRecord(snap, j.Spec) {
		var err error
		if record, err = ReadRecord(ctx, j.Tools.Cluster, j.Spec.Name); err != nil {
			return nil, err
		}
	}
	return Look(snap, j.Spec, record), nil
}

// live asks what only the running cluster can tell.
func (j *Job) live(ctx context.Context, in *Input) error {
	tries, err := j.trials(ctx, in)
	if err != nil {
		return err
	}
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	for _, try := range tries {
		eg.Go(func() error { return unlessForbidden(try(ctx)) })
	}
	eg.Go(func() error { return unlessForbidden(j.inspect(ctx, in)) })
	eg.Go(func() error { return unlessForbidden(j.seeDualWrite(ctx, in)) })
	eg.Go(func() error { return j.seeGuard(ctx, in) })
	eg.Go(func() error { return j.kept(ctx, in) })
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
		found, err := cluster.References(ctx, j.Tools.Cluster, scanner)
		if err != nil {
			return err
		}
		if err := cluster.Neighbours(ctx, j.Tools.Cluster, found); err != nil {
			return err
		}
		j.inspection = found
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

// trials are what is tried out for the checks.
func (j *Job) trials(ctx context.Context, in *Input) (tries []func(context.Context) error, err error) {
	in.Trials.Forms = map[string]map[v1alpha1.BridgeForm]error{}
	if len(in.Survey.Pending()) > 0 && j.Spec.Bridge != v1alpha1.BridgeExternalIPs {
		if in.Trials.NodePorts, err = apiserver.SeeNodePorts(ctx, j.Tools.Cluster); err != nil {
			return nil, err
		}
	}
	var ranges []ownRange
	if plan := (&rangePlan{client: j.Tools.Cluster, survey: in.Survey}); !in.Survey.Bitmap {
		ranges = slices.Concat(plan.targets(), plan.kept())
	}
	t := &trier{
		cluster: j.Tools.Cluster, survey: in.Survey, may: j.May, ranges: ranges,
		candidates: in.candidates(), found: &in.Trials,
	}
	if j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack { // the way back is not refused before it begins
		return t.bridges(), nil
	}
	return append(t.bridges(), t.others()...), nil
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
	agents.Roll = len(in.Survey.DNSMoves()) > 0 // cluster DNS is restarted
	agents.Ranges = slices.Concat(in.Survey.Spec.From, in.Survey.Spec.To)
	// API servers that have a flag give addresses of that range alone.
	if len(in.Survey.Pending()) > 0 && (!in.Survey.Bitmap || in.Survey.gives(in.Survey.Spec.From)) {
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
