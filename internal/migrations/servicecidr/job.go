package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/checks"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Deps are what steps work with. Plans can be made and shown without a cluster.
type Deps struct {
	migration.Deps
	Probe     bridge.NodeProbe
	Inspector ranges.Inspector
	// Store, if set, takes the place of the store that the Migration names.
	Store exchange.Store
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
	lossguard.Watched

	Deps Deps
	Spec services.Spec
	// Silent has the job call nothing that the Migration names.
	Silent bool
	// LeaveClients has finish not wait for clients of old addresses.
	LeaveClients bool
	// CreatedDuring is what a rollback does with Services that were made in the target range.
	CreatedDuring CreatedDuringPolicy

	late       map[types.UID]bool
	stranded   *strandings
	onMove     func(migration.Move)
	inspection *inventory.Scan
	lookup     *tier.Cache
	etcd       *exchange.Etcd
}

var _ migration.Kind[*Planner] = (*Job)(nil)

// NewJob defaults and validates a Migration. The Migration itself is not changed.
func NewJob(tools Deps, m *v1alpha1.Migration) (*Job, error) {
	m = m.DeepCopy()
	Default(m)
	s, err := Validate(m)
	if err != nil {
		return nil, err
	}
	j := &Job{Subject: migration.Subject{Migration: m}, Deps: tools, Spec: s, stranded: &strandings{}}
	j.Job = &migration.Job[*Planner]{
		Kind: j, Client: tools.Client(), Name: s.Name, Guard: j.agents(), Now: tools.Now, Directed: tools.Directed,
	}
	if err := j.checkAgents(); err != nil {
		return j, err
	}
	return j, j.checkOverlap()
}

// MayLook asks for the user's rights, once. Only those to look are required.
func (j *Job) MayLook(ctx context.Context) error {
	roles, err := j.Roles(ctx)
	if err != nil {
		return err
	}
	return j.Authorize(ctx, j.Deps.Cluster, roles, toLook)
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
	return migration.UpdateStatus(ctx, j.Deps.Cluster, have.Name, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = nil })
}

// away reports whether a Migration was on its way back, or back, before this command.
func (j *Job) away(have *v1alpha1.Migration) bool {
	if j.Deps.Directed {
		return have.Status.Phase == v1alpha1.PhaseRollingBack || have.Status.Phase == v1alpha1.PhaseRolledBack
	}
	return have.Spec.Desired == v1alpha1.DesiredRolledBack
}

// AnotherRound moves Services that appeared in the range to be retired and have not gone.
func (j *Job) AnotherRound(ctx context.Context, err error) bool {
	if !errors.As(err, new(*ranges.RangeInUseError)) {
		return false
	}
	again := false
	look := &engine.Wait{Name: "look", About: "Find users of the range", Again: true, For: func(ctx context.Context) error {
		s, err := j.LoadInventory(ctx)
		again = err == nil && (len(s.Pending()) > 0 || len(s.Blockers()) == 0)
		return err
	}}
	return engine.Drive(ctx, look) == nil && again
}

func (j *Job) LoadInventory(ctx context.Context) (*services.Inventory, error) {
	snap, err := inventory.Load(ctx, j.Deps.Cluster)
	if err != nil {
		return nil, err
	}
	inventory, _, err := j.inventory(ctx, snap)
	return inventory, err
}

// Examine looks as far as the user's rights go.
func (j *Job) Examine(ctx context.Context) (*Planner, error) {
	if _, err := j.Deps.Cluster.ServerVersion(ctx); err != nil {
		return nil, err
	}
	if err := j.MayLook(ctx); err != nil {
		return nil, err
	}
	snap, err := inventory.Load(ctx, j.Deps.Cluster)
	if err != nil {
		return nil, err
	}
	if err := refuseUpgraded(snap); err != nil {
		return nil, err
	}
	found, rules, err := j.inventory(ctx, snap)
	if err != nil {
		return nil, err
	}
	in := checks.Input{
		Snapshot:  snap,
		Inventory: found,
		Live:      inventory.Live{Access: j.Access},
		Image:     j.agents().Image().Name,
		Overlap:   j.overlapImage().Name != "",
		GateImage: j.image().Name,
	}
	if err := j.live(ctx, &in); err != nil {
		return nil, err
	}
	if in.Workloads, err = j.workloads(ctx, found); err != nil {
		return nil, err
	}
	found.MarkCalled(in.Found().Called)
	found.MarkRouted(in.Found().Routes)
	if err := j.chooseOverlaps(ctx, &in); err != nil {
		return nil, err
	}
	p, err := j.planner(ctx, in)
	if err != nil {
		return nil, err
	}
	r := refresher{
		tools: j.Deps.Deps, inventory: found, rules: rules, of: j.Migration, to: engine.Forward, workloads: in.Workloads,
	}
	if j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack {
		r.to = engine.Backward
	}
	r.departure, r.beside = departure(p.barriers(r.to)), p.Agents.Beside()
	p.Refresh, in.Restarts = r.plan()
	p.Findings = append(findings.Run(Checks(), in), p.Findings...)
	return p, nil
}

// workloads are what may have to be restarted; nil, if nothing moves or the user may not look.
func (j *Job) workloads(ctx context.Context, inventory *services.Inventory) (*rollout.State, error) {
	if len(inventory.Moves) == 0 {
		return nil, nil
	}
	state, err := rollout.Load(ctx, j.Deps.Cluster)
	if err != nil {
		return state, access.UnlessForbidden(err)
	}
	state.KnowTakenBack(j.Migration.Status.TakenBack)
	return state, nil
}

func (j *Job) planner(ctx context.Context, in checks.Input) (*Planner, error) {
	base, err := j.Base(ctx, j.Deps.Deps)
	if err != nil {
		return nil, err
	}
	recordRanges(base.Migration.Spec.ServiceCIDR, in.Inventory.Spec, j.Recorded)
	p := &Planner{
		Base: base, Probe: j.Deps.Probe, Inspector: j.Deps.Inspector, Inventory: in.Inventory, OnMove: j.onMove, Stranded: j.stranded,
		LeaveClients: j.LeaveClients, CanFreeze: in.Freeze == nil, Origin: inventory.OriginOf(in.Snapshot.Nodes, in.Found().Kubeadm),
		Agents: j.newAgents(in), CreatedDuring: j.returning(in.Inventory),
	}
	if p.Leftovers, err = j.agents().Left(ctx); err != nil {
		return nil, err
	}
	if err := j.addOverlap(ctx, p); err != nil {
		return nil, err
	}
	if err := j.addStore(ctx, p); err != nil {
		return nil, err
	}
	p.Kubeadm = j.kubeadmGates(in)
	p.Forms, p.Form = in.Forms()
	if err := j.tryOwn(ctx, p); err != nil {
		return nil, err
	}
	p.Cilium = in.OverlapFacts().Cilium
	if p.KeepType, err = j.keepType(ctx, in); err != nil {
		return nil, err
	}
	return p, nil
}

// tryOwn asks whether what replumb makes in its own namespace is admitted.
func (j *Job) tryOwn(ctx context.Context, p *Planner) error {
	var own []client.Object
	if p.Overlap != nil {
		made, err := p.Overlap.Objects()
		if err != nil {
			return err
		}
		own = made
	}
	if len(p.Inventory.Pending()) > 0 {
		own = append(own, p.steps(engine.Forward).CanaryLike()...)
	}
	found, err := p.Agents.Try(ctx, &j.Subject, j.Deps.Cluster, own...)
	p.Findings = append(p.Findings, found...)
	return err
}

// kubeadmGates pass gates by what kubeadm has written on nodes; nil, if that is not asked for.
func (j *Job) kubeadmGates(in checks.Input) *kubeadmgate.Gates {
	if in.Kubeadm == nil {
		return nil
	}
	g := kubeadmgate.New(j.Deps.Cluster, j.Spec.Name, j.image(), in.Kubeadm, in.Snapshot.Nodes)
	g.ByHand = "name it in spec.serviceCIDR.manualGates"
	return g
}

// inventory asks the tier lookup about Services that no rule names.
func (j *Job) inventory(ctx context.Context, snap *inventory.Snapshot) (*services.Inventory, tier.Rules, error) {
	inventory, err := j.positions(ctx, snap)
	if err != nil {
		return nil, tier.Rules{}, err
	}
	if len(inventory.Spec.To) == 0 {
		return nil, tier.Rules{}, &SpecError{
			Field: "spec.serviceCIDR.to", Problem: "there is no other ready Service range for the Services to go to",
			Hint: "name one, or add one first with mode: Extend",
		}
	}
	rules, err := tier.NewRules(&j.Spec.Common, inventory.IsClusterService)
	if err != nil {
		return nil, rules, err
	}
	movers := inventory.Services()
	var answers map[types.NamespacedName]string
	questions := tier.Questions(movers, rules)
	if len(questions) > 0 && !j.Silent {
		if j.lookup == nil {
			j.lookup = tier.NewCache(j.Deps.Now)
		}
		if answers, err = j.lookup.Lookup(ctx, *j.Spec.Common.TierLookup, questions, rules.Names()); err != nil {
			return nil, rules, err
		}
	}
	assigned := tier.Assign(movers, rules, answers)
	if len(questions) > 0 && j.Silent {
		assigned.Unasked(questions)
	}
	inventory.AssignTiers(assigned)
	return inventory, rules, nil
}

func (j *Job) positions(ctx context.Context, snap *inventory.Snapshot) (inventory *services.Inventory, err error) {
	loader, record := services.NewLoader(snap, j.Spec), services.Record(nil)
	if loader.WantsRecord() {
		if record, err = services.ReadRecord(ctx, j.Deps.Cluster, j.Spec.Name); err != nil {
			return nil, err
		}
	}
	inventory = loader.Load(record)
	j.stranded.mark(inventory)
	if j.Recorded != nil {
		inventory.Recorded = j.Recorded.CreationTimestamp
	}
	return inventory, nil
}

func (j *Job) agents() *lossguard.AgentConfig {
	c := j.AgentsOf(j.Deps.Deps, j.Spec.Name, &j.Spec.Common)
	c.Services = true
	c.None = j.Spec.Mode == v1alpha1.ModeExtend
	return c
}

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
func (j *Job) newAgents(in checks.Input) *lossguard.Agents {
	agents := j.agents().New(len(in.Snapshot.Nodes))
	if agents == nil {
		return nil
	}
	agents.Domain = j.Spec.Domain
	agents.Roll = len(in.Inventory.DNSMoves()) > 0 // cluster DNS is restarted
	agents.Ranges = slices.Concat(in.Inventory.Spec.From, in.Inventory.Spec.To)
	// API servers that have a flag give addresses of that range alone.
	if len(in.Inventory.Pending()) > 0 && (!in.Inventory.Bitmap || ranges.GivesOutAllOf(in.Inventory, in.Inventory.Spec.From)) {
		agents.Pool = cidr.NewPool(in.Inventory.Spec.From, in.Inventory.Used)
	}
	return agents
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[checks.Input] { return checks.All() }

// OnMove reports each move once it is over.
func (j *Job) OnMove(tell func(migration.Move)) { j.onMove = tell }

// Silence sets Silent.
func (j *Job) Silence() { j.Silent = true }
