package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/addr"
	"github.com/replumb/replumb/internal/backup"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/freeze"
	"github.com/replumb/replumb/internal/hook"
	"github.com/replumb/replumb/internal/window"
)

// parallel is how many steps of one group run at once.
const parallel = 32

// Tools are what steps work with. Plans can be made and shown without them.
type Tools struct {
	Cluster   *cluster.Cluster
	Probe     bridge.NodeProbe
	Inspector Inspector
	Now       func() time.Time
}

// client is nil, and not a nil pointer in an interface, when there is no cluster.
func (t Tools) client() client.Client {
	if t.Cluster == nil {
		return nil
	}
	return t.Cluster
}

// Planner makes plans from a survey.
type Planner struct {
	Tools     Tools
	Survey    *Survey
	Migration *v1alpha1.Migration
	Findings  check.Findings
	Form      v1alpha1.BridgeForm
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool
	// CanFreeze says whether the cluster takes the policy that freezes Services.
	CanFreeze bool
	// Distribution is what the instructions of gates depend on.
	Distribution distribution
	// Refresh is what has to be restarted for pods to get rid of old addresses.
	Refresh Refresh
	proving sync.Mutex
}

// phaseKubelets parts apply and rollback in two: who still carries an address of before can be told only once it is over,
// so what comes after it is planned anew then.
const phaseKubelets = "kubelets"

// ApplyPhases are the phases of apply, in order.
func ApplyPhases() []string {
	p := &Planner{Survey: &Survey{}, Migration: &v1alpha1.Migration{}}
	var names []string
	for _, phase := range p.Apply().Phases {
		names = append(names, phase.Name)
	}
	return names
}

// PhaseNames are the phases of all plans, which hooks can name.
func PhaseNames() []string {
	p := &Planner{Survey: &Survey{}, Migration: &v1alpha1.Migration{}}
	var names []string
	for _, plan := range []*engine.Plan{p.Apply(), p.Rollback(), p.Finish()} {
		for i := range plan.Phases {
			if !slices.Contains(names, plan.Phases[i].Name) {
				names = append(names, plan.Phases[i].Name)
			}
		}
	}
	return names
}

// Apply is the way to the point where nothing needs the old range any more and old addresses still answer.
func (p *Planner) Apply() *engine.Plan {
	phases := []engine.Phase{
		{Name: "check", Title: "Check the cluster", Groups: single(&checkStep{findings: p.Findings})},
		{Name: "secure", Title: "Record the migration, back up and freeze what it changes", Groups: p.secure()},
		{Name: "extend", Title: "Add the target range", Groups: p.extend()},
		{Name: "canary", Title: "Move a throw-away Service first", Groups: p.canary()},
		{Name: "move", Title: "Move Services, tier by tier, batch by batch", Groups: p.move()},
		{Name: phaseKubelets, Title: "Have kubelets name the new cluster DNS address", Groups: p.kubelets(forth)},
		{Name: "refresh", Title: "Restart what carries old addresses", Groups: p.refresh()},
		{Name: "repoint", Title: "Retire the old range", Groups: p.repoint()},
		{Name: "tidy", Title: "Remove what deleted Services left behind", Groups: p.tidy()},
	}
	return p.plan(hook.Apply, phases...)
}

// Finish takes the old addresses away. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	return p.plan(
		hook.Finish,
		engine.Phase{Name: "drain", Title: "Let clients forget old addresses", Groups: single(p.drain())},
		engine.Phase{Name: "verify", Title: "Verify every moved Service", Groups: p.each(func(e *Entry) engine.Step {
			return &arrivedStep{tools: p.Tools, entry: e}
		})},
		engine.Phase{
			Name: "final", Title: "Pass the point of no return", Groups: single(&finalStep{tools: p.Tools, name: p.spec().Name}),
		},
		engine.Phase{Name: "release", Title: "Take bridges and old addresses away", Groups: p.each(func(e *Entry) engine.Step {
			return &releaseStep{tools: p.Tools, migration: p.spec().Name, entry: e, at: e.New}
		})},
		engine.Phase{Name: "prove", Title: "Prove that every node knows the new addresses", Groups: p.proveReleased()},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: append(append(p.tidy(), p.handOver()...), p.leave()...)},
	)
}

// Rollback brings every Service back to its old address, by the bridges that still answer on both, and after it whatever
// had followed the Services.
func (p *Planner) Rollback() *engine.Plan {
	return p.plan(
		hook.Rollback,
		engine.Phase{Name: "reopen", Title: "Open the old range again", Groups: p.reopen()},
		engine.Phase{Name: "return", Title: "Return Services, tier by tier, batch by batch", Groups: p.giveBack()},
		engine.Phase{Name: phaseKubelets, Title: "Have kubelets name the old cluster DNS address", Groups: p.kubelets(back)},
		engine.Phase{Name: "refresh", Title: "Restart what carries new addresses", Groups: p.refresh()},
		engine.Phase{Name: "restore", Title: "Make the old range the default again", Groups: p.restore()},
		engine.Phase{Name: "drain", Title: "Let clients forget new addresses", Groups: single(p.drain())},
		engine.Phase{Name: "release", Title: "Take bridges and new addresses away", Groups: p.each(func(e *Entry) engine.Step {
			return &releaseStep{tools: p.Tools, migration: p.spec().Name, entry: e, at: e.Old}
		})},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: append(p.tidy(), p.leave()...)},
		engine.Phase{Name: "withdraw", Title: "Remove the ranges of the migration", Groups: p.withdraw()},
	)
}

// direction of a migration.
type direction bool

const (
	forth direction = true
	back  direction = false
)

// plan puts hooks around phases that have something to do.
func (p *Planner) plan(run hook.Run, phases ...engine.Phase) *engine.Plan {
	for i := range phases {
		phase := &phases[i]
		if countSteps(phase.Groups) == 0 {
			continue
		}
		before := p.hooks(hook.Occasion{Run: run, Moment: v1alpha1.BeforePhase, Phase: phase.Name})
		after := p.hooks(hook.Occasion{Run: run, Moment: v1alpha1.AfterPhase, Phase: phase.Name})
		phase.Groups = slices.Concat(before, phase.Groups, after)
	}
	return &engine.Plan{Name: p.spec().Name, Phases: phases}
}

func countSteps(groups []engine.Group) int {
	n := 0
	for _, g := range groups {
		n += len(g.Steps)
	}
	return n
}

// Outstanding is what of Apply is still to be done, for people to read. Services that have moved are in no plan anyway;
// of the other phases it is looked up here.
func (p *Planner) Outstanding(ctx context.Context) *engine.Plan {
	return p.Apply().Outstanding(ctx, "secure", "extend", phaseKubelets, "repoint")
}

func (p *Planner) spec() Spec { return p.Survey.Spec }

func (p *Planner) secure() []engine.Group {
	want := p.Migration.DeepCopy()
	want.Spec.Desired = v1alpha1.DesiredApplied
	steps := []engine.Step{
		&crdStep{tools: p.Tools, upgrade: p.HasCRD},
		&namespaceStep{tools: p.Tools, migration: p.spec().Name},
		&migrationStep{tools: p.Tools, want: want, recorded: p.Recorded},
	}
	if originals := p.originals(); len(originals) > 0 {
		title := fmt.Sprintf("Back up %d objects", len(originals))
		steps = append(steps, backup.NewStep(p.Tools.client(), want, "secure/backup", title, originals))
	}
	if p.frozen() {
		steps = append(steps, p.freeze())
	}
	return inOrder(steps...)
}

// originals are the objects that are about to be changed for the first time.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for _, e := range p.Survey.Moves {
		if e.Place == Waiting || e.Place == Bridged {
			all = append(all, e.Service)
		}
	}
	if p.spec().Mode == v1alpha1.ModeExtend {
		return all
	}
	for i := range p.Survey.Ranges {
		if c := &p.Survey.Ranges[i]; p.goes(c) {
			all = append(all, c)
		}
	}
	return append(all, p.Refresh.Originals()...)
}

func (p *Planner) frozen() bool {
	return p.CanFreeze && p.spec().Common.Freeze != v1alpha1.FreezeOff && p.spec().Mode != v1alpha1.ModeExtend
}

func (p *Planner) freeze() *freeze.Step {
	return &freeze.Step{Client: p.Tools.client(), Migration: p.spec().Name}
}

func (p *Planner) extend() []engine.Group {
	var steps []engine.Step
	for _, s := range p.rangeSteps() {
		steps = append(steps, s)
	}
	return inOrder(steps...)
}

func (p *Planner) rangeSteps() []*rangeStep {
	var steps []*rangeStep
	for i, r := range p.spec().To {
		steps = append(steps, p.rangeStep(RangeName(p.spec(), i), r, v1alpha1.RoleRange))
	}
	return steps
}

func (p *Planner) rangeStep(name string, cidr netip.Prefix, role string) *rangeStep {
	return &rangeStep{tools: p.Tools, migration: p.spec().Name, name: name, cidr: cidr, role: role}
}

// RangeName is the name of the ServiceCIDR of the i-th target range.
func RangeName(spec Spec, i int) string {
	if len(spec.To) == 1 {
		return spec.Name
	}
	return fmt.Sprintf("%s-%d", spec.Name, i)
}

// canary goes first, as long as no Service has gone.
func (p *Planner) canary() []engine.Group {
	pending := p.Survey.Pending()
	if len(pending) == 0 || len(pending) < len(p.Survey.Moves) || p.Survey.Counts().Bridged > 0 {
		return nil
	}
	return single(&canaryStep{planner: p, pool: addr.NewPool(p.spec().From, p.Survey.Used)})
}

// move is the heart: tier by tier, batch by batch.
func (p *Planner) move() []engine.Group {
	groups := p.follow()
	counts := p.Survey.Counts()
	total := 0
	for _, tier := range p.Survey.Tiers {
		total += len(chunk(p.Survey.InTier(tier), p.spec().Batch))
	}
	number := 0
	will := map[*Entry]bool{}
	for _, tier := range p.Survey.Tiers {
		var inside []engine.Group
		for _, entries := range chunk(p.Survey.InTier(tier), p.spec().Batch) {
			number++
			counts.Moved += len(entries)
			for _, e := range entries {
				will[e] = true
			}
			b := &batch{number: number, of: total, tier: tier, entries: entries, counts: counts, tiers: p.Survey.TierCounts(will)}
			inside = append(inside, p.moveBatch(b)...)
		}
		groups = append(groups, p.around(hook.Apply, "move", tier, inside)...)
	}
	if number > 0 && p.frozen() {
		groups = append(groups, engine.Group{Steps: []engine.Step{&markStep{tools: p.Tools, migration: p.spec().Name, id: "none"}}})
	}
	return groups
}

// batch is what moves together.
type batch struct {
	number, of int
	tier       string
	entries    []*Entry
	// counts are those of the whole migration once the batch has moved.
	counts v1alpha1.Counts
	tiers  []v1alpha1.TierStatus
}

func (b *batch) String() string { return fmt.Sprintf("batch %d of %d", b.number, b.of) }

func (b *batch) keys() []types.NamespacedName {
	keys := make([]types.NamespacedName, len(b.entries))
	for i, e := range b.entries {
		keys[i] = e.Key()
	}
	return keys
}

func (b *batch) names() []string {
	names := make([]string, len(b.entries))
	for i, e := range b.entries {
		names[i] = e.Key().String()
	}
	return names
}

// moveBatch: the bridges, the proof that every node knows them, the hops, and time to look.
func (p *Planner) moveBatch(b *batch) []engine.Group {
	groups := p.approach(hook.Apply, "move", b)
	if slices.ContainsFunc(b.entries, (*Entry).IsKubernetes) {
		groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{p.certificates()}})
	}
	groups = append(groups, p.crossing(b, p.hop)...)
	note := &noteStep{tools: p.Tools, migration: p.spec().Name, batch: b.String(), counts: b.counts, tiers: b.tiers}
	groups = append(groups, engine.Group{Title: b.String(), Steps: append([]engine.Step{note}, p.settle(b.String())...)})
	return append(groups, p.hooks(p.occasion(hook.Apply, v1alpha1.AfterBatch, "move", b))...)
}

// approach is what comes before a batch: the window to be in, hooks, and the freeze.
func (p *Planner) approach(run hook.Run, phase string, b *batch) []engine.Group {
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = append(groups, engine.Group{
			Title: b.String(), Steps: []engine.Step{window.NewStep("window/"+b.String(), windows, p.Tools.now)},
		})
	}
	groups = append(groups, p.hooks(p.occasion(run, v1alpha1.BeforeBatch, phase, b))...)
	if p.frozen() {
		mark := &markStep{tools: p.Tools, migration: p.spec().Name, id: b.String(), keys: b.keys()}
		groups = append(groups, engine.Group{Title: b.String(), Steps: []engine.Step{mark}})
	}
	return groups
}

// crossing takes a batch over its bridges. Services with node ports hop one after the other: each needs a sync window of
// the kube-proxies for itself. kubernetes hops last, when everything beside it is proven to work.
func (p *Planner) crossing(b *batch, hop func(*Entry) engine.Step) []engine.Group {
	var plainHops, nodePorts, last []*Entry
	for _, e := range b.entries {
		switch {
		case e.IsKubernetes():
			last = append(last, e)
		case e.HasNodePorts():
			nodePorts = append(nodePorts, e)
		default:
			plainHops = append(plainHops, e)
		}
	}
	return []engine.Group{
		{Title: b.String(), Parallel: parallel, Steps: mapSteps(b.entries, p.bridge)},
		{Title: b.String(), Steps: []engine.Step{p.barrier(b.String())}},
		{Title: b.String(), Parallel: parallel, Steps: mapSteps(plainHops, hop)},
		{Title: b.String(), Parallel: 1, Steps: mapSteps(nodePorts, hop)},
		{Title: b.String(), Steps: mapSteps(last, hop)},
	}
}

// around puts hooks and the pause of a tier around its batches.
func (p *Planner) around(run hook.Run, phase, tier string, inside []engine.Group) []engine.Group {
	if len(inside) == 0 {
		return nil
	}
	o := hook.Occasion{Run: run, Phase: phase, Tier: tier}
	o.Moment = v1alpha1.BeforeTier
	before := p.hooks(o)
	o.Moment = v1alpha1.AfterTier
	after := p.hooks(o)
	for _, t := range p.spec().Common.Tiers {
		if t.Name == tier && t.Pause != nil && t.Pause.Duration > 0 {
			after = append(after, engine.Group{Title: tier, Steps: []engine.Step{&pauseStep{
				id: "pause/" + tier, length: t.Pause.Duration, now: p.Tools.Now,
				title: fmt.Sprintf("Wait %s after tier %s", t.Pause.Duration, tier),
			}}})
		}
	}
	return slices.Concat(before, inside, after)
}

func (p *Planner) occasion(run hook.Run, moment v1alpha1.HookMoment, phase string, b *batch) hook.Occasion {
	return hook.Occasion{Run: run, Moment: moment, Phase: phase, Tier: b.tier, Batch: b.number, Services: b.names()}
}

func (p *Planner) hooks(o hook.Occasion) []engine.Group {
	o.Migration = p.spec().Name
	steps := hook.Steps(p.spec().Common.Hooks, o)
	if len(steps) == 0 {
		return nil
	}
	return inOrder(steps...)
}

// follow repairs the bridges of Services that moved before and were changed since, or whose bridge was taken away.
func (p *Planner) follow() []engine.Group {
	var stale []engine.Step
	for _, e := range p.Survey.Moves {
		if e.Place != Moved {
			continue
		}
		want := p.bridgeOf(e, e.Service)
		if e.Bridge != nil {
			want.Form = bridge.FormOf(e.Bridge)
		}
		if e.Bridge == nil || e.Mirrored() || bridge.Difference(e.Bridge, want.Build()) != nil {
			stale = append(stale, p.bridge(e))
		}
	}
	if len(stale) == 0 {
		return nil
	}
	return []engine.Group{{Title: "bridges of moved Services", Parallel: parallel, Steps: stale}}
}

// giveBack is move the other way. A Service that never left its old address has nothing to return from.
func (p *Planner) giveBack() []engine.Group {
	var groups []engine.Group
	total := 0
	for _, tier := range p.Survey.Tiers {
		total += len(chunk(p.Survey.Away(tier), p.spec().Batch))
	}
	number := 0
	for _, tier := range p.Survey.Tiers {
		var inside []engine.Group
		for _, entries := range chunk(p.Survey.Away(tier), p.spec().Batch) {
			number++
			b := &batch{number: number, of: total, tier: tier, entries: entries}
			inside = append(inside, p.approach(hook.Rollback, "return", b)...)
			inside = append(inside, p.crossing(b, func(e *Entry) engine.Step { return p.hop(e).(*hopStep).Undo() })...)
			inside = append(inside, engine.Group{Title: b.String(), Steps: p.settle(b.String())})
			inside = append(inside, p.hooks(p.occasion(hook.Rollback, v1alpha1.AfterBatch, "return", b))...)
		}
		groups = append(groups, p.around(hook.Rollback, "return", tier, inside)...)
	}
	return groups
}

// kubelets waits until no kubelet names the cluster DNS address that is left behind.
func (p *Planner) kubelets(d direction) []engine.Group {
	var left []netip.Addr
	var want []string
	for _, e := range p.Survey.DNSMoves() {
		if d == back && !e.Touched {
			continue // it never moved
		}
		leaves, goes := e.Old, e.New
		if d == back {
			leaves, goes = e.New, e.Old
		}
		left, want = append(left, leaves), append(want, goes.String())
	}
	if len(left) == 0 {
		return nil
	}
	return single(&kubeletGate{
		gate: gate{
			id: "kubelets", title: "Wait until every kubelet names " + strings.Join(want, ", ") + " as cluster DNS",
			guide: kubeletGuide(p.Distribution, strings.Join(want, ",")), length: p.spec().GateWait,
		},
		tools: p.Tools, migration: p.spec().Name, left: left,
	})
}

// refresh restarts workloads, a tier at a time.
func (p *Planner) refresh() []engine.Group { return p.Refresh.groups() }

func (p *Planner) servers() apiServers {
	return apiServers{tools: p.Tools, addresses: p.spec().APIServers}
}

func (p *Planner) certificates() engine.Step {
	want := p.Survey.Kubernetes().New
	return &certificateGate{
		gate: gate{
			id: "certificates", title: fmt.Sprintf("Wait until the certificate of every API server names %s", want),
			guide: certificateGuide(p.Distribution, p.Survey.Kubernetes().Old, want), length: p.spec().GateWait,
		},
		servers: p.servers(), want: want,
	}
}

func (p *Planner) apiServers(want netip.Prefix, confirmation string, lenient bool) engine.Step {
	return &apiServerGate{
		gate: gate{
			id: "api-servers", title: fmt.Sprintf("Wait until every API server has %s as --service-cluster-ip-range", want),
			guide: apiServerGuide(p.Distribution, want), length: p.spec().GateWait,
		},
		servers: p.servers(), migration: p.spec().Name, want: want, confirmation: confirmation, lenient: lenient,
	}
}

// The confirmations of operators, values of v1alpha1.AnnotationAPIServers.
const (
	repointed = "Repointed"
	restored  = "Restored"
)

// repoint retires what of the old ranges nothing needs any more: the default one after the API servers have another.
func (p *Planner) repoint() []engine.Group {
	if p.spec().Mode == v1alpha1.ModeExtend {
		return nil
	}
	var vacant, retire []engine.Step
	hasDefault := false
	for i := range p.Survey.Ranges {
		c := &p.Survey.Ranges[i]
		if !p.retires(c) {
			continue
		}
		hasDefault = hasDefault || c.Name == defaultRange
		step := &retireStep{tools: p.Tools, name: c.Name, cidrs: cidrsOf(c), kept: p.Survey.KeepRanges()}
		vacant, retire = append(vacant, &vacantStep{of: step}), append(retire, step)
	}
	groups := append(inOrder(p.keep()...), inOrder(vacant...)...)
	was, moves := p.defaultWas()
	if hasDefault {
		groups = append(groups, single(p.apiServers(p.spec().To[0], repointed, false))...)
	}
	groups = append(groups, inOrder(retire...)...)
	if hasDefault || (moves && p.defaultNow() == nil) {
		groups = append(groups, single(&defaultStep{tools: p.Tools, want: p.spec().To, gone: []netip.Prefix{was}})...)
	}
	return groups
}

// goes reports whether a ServiceCIDR, not of replumb's making, lies in what is to be emptied.
func (p *Planner) goes(c *networkingv1.ServiceCIDR) bool {
	return c.Labels[v1alpha1.LabelRole] == "" && len(cidrsOf(c)) > 0 && inside(c, p.spec().From)
}

// retires reports whether a ServiceCIDR goes. One that holds the cluster's own Services, told to stay, does not; who else
// still has an address in it is named when its turn comes.
func (p *Planner) retires(c *networkingv1.ServiceCIDR) bool {
	return p.goes(c) && !slices.ContainsFunc(p.Survey.Blockers(), func(e *Entry) bool {
		return e.Reason == clusterServicesStay && addr.Contains(cidrsOf(c), e.Old)
	})
}

// keep makes the ranges for pinned Services.
func (p *Planner) keep() []engine.Step {
	var steps []engine.Step
	for _, r := range p.Survey.KeepRanges() {
		steps = append(steps, p.keepStep(r))
	}
	return steps
}

func (p *Planner) keepStep(r netip.Prefix) *rangeStep {
	name := strings.NewReplacer(".", "-", ":", "-", "/", "-").Replace(r.String())
	return p.rangeStep(p.spec().Name+"-keep-"+strings.ReplaceAll(name, "--", "-0-"), r, v1alpha1.RoleKeep)
}

// defaultWas is the range that held kubernetes, which is the default one; false, if kubernetes does not move.
func (p *Planner) defaultWas() (was netip.Prefix, moves bool) {
	e := p.Survey.Kubernetes()
	if e == nil {
		return netip.Prefix{}, false
	}
	for _, r := range p.spec().From {
		if r.Contains(e.Old) {
			return r, true
		}
	}
	return netip.Prefix{}, false
}

// defaultNow is the default ServiceCIDR; nil, if it is gone or going.
func (p *Planner) defaultNow() *networkingv1.ServiceCIDR {
	for i := range p.Survey.Ranges {
		if c := &p.Survey.Ranges[i]; c.Name == defaultRange && c.DeletionTimestamp.IsZero() {
			return c
		}
	}
	return nil
}

// reopen makes sure that both ranges are open: addresses are given out again in the old one, and stay legitimate in the
// new one until the last Service has left it.
func (p *Planner) reopen() []engine.Group {
	var groups []engine.Group
	if slices.ContainsFunc(p.Survey.Moves, func(e *Entry) bool { return e.Place != Waiting || e.Touched }) {
		groups = p.extend()
	}
	var steps []engine.Step
	for i, r := range p.spec().From {
		open := slices.ContainsFunc(p.Survey.Ranges, func(c networkingv1.ServiceCIDR) bool {
			return c.DeletionTimestamp.IsZero() && slices.Contains(cidrsOf(&c), r)
		})
		if !open {
			steps = append(steps, p.reopenStep(i, r))
		}
	}
	return append(groups, inOrder(steps...)...)
}

func (p *Planner) reopenStep(i int, r netip.Prefix) *rangeStep {
	return p.rangeStep(fmt.Sprintf("%s-reopened-%d", p.spec().Name, i), r, v1alpha1.RoleReopened)
}

// restore gives the API servers their old range back, if they had been given the new one. A range that was retired and is
// no API server's stays open under the name it was opened with.
func (p *Planner) restore() []engine.Group {
	var groups []engine.Group
	if was, moves := p.defaultWas(); moves && p.Survey.Kubernetes().Touched {
		now := p.defaultNow()
		never := now != nil && slices.Contains(cidrsOf(now), was)
		groups = append(groups, single(p.apiServers(was, restored, never))...)
		if !never {
			gone := p.spec().To
			if now != nil {
				gone = cidrsOf(now)
			}
			groups = append(groups, single(&defaultStep{tools: p.Tools, want: []netip.Prefix{was}, gone: gone, remove: true})...)
		}
	}
	var steps []engine.Step
	for i, r := range p.spec().From {
		steps = append(steps, &handOverStep{of: p.reopenStep(i, r)})
	}
	return append(groups, inOrder(steps...)...)
}

// withdraw removes the ranges that the migration added.
func (p *Planner) withdraw() []engine.Group {
	var steps []engine.Step
	for i := range p.Survey.Ranges {
		c := &p.Survey.Ranges[i]
		if c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleKeep && c.Labels[v1alpha1.LabelMigration] == p.spec().Name {
			steps = append(steps, p.rangeStep(c.Name, cidrsOf(c)[0], v1alpha1.RoleKeep).Undo())
		}
	}
	for _, s := range p.rangeSteps() {
		steps = append(steps, s.Undo())
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}} // each waits out the same grace period
}

// each makes a step for every Service of the migration that has something of it left: those never touched have not.
func (p *Planner) each(step func(*Entry) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, e := range p.Survey.Moves {
		if e.Place != Waiting || e.Touched {
			steps = append(steps, step(e))
		}
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}

// proveReleased passes one more barrier: what is behind it, every node has seen, the removal of the bridges included.
func (p *Planner) proveReleased() []engine.Group {
	if len(p.Survey.Moves) == 0 {
		return nil
	}
	return single(p.barrier("released addresses"))
}

func (p *Planner) tidy() []engine.Group {
	var steps []engine.Step
	for _, b := range p.Survey.Orphans {
		steps = append(steps, &orphanStep{tools: p.Tools, bridge: b})
	}
	for i := range p.Survey.Strays {
		steps = append(steps, &strayStep{tools: p.Tools, migration: p.spec().Name, ip: &p.Survey.Strays[i]})
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}

// handOver ends the migration's say over the ranges it added.
func (p *Planner) handOver() []engine.Group {
	var steps []engine.Step
	for _, s := range p.rangeSteps() {
		steps = append(steps, &handOverStep{of: s})
	}
	for _, r := range p.Survey.KeepRanges() {
		steps = append(steps, &handOverStep{of: p.keepStep(r)})
	}
	return inOrder(steps...)
}

// leave removes what replumb keeps for itself, and looks that nothing is left.
func (p *Planner) leave() []engine.Group {
	steps := []engine.Step{p.freeze().Undo(), &remainsStep{tools: p.Tools, migration: p.spec().Name}}
	if p.spec().Common.Backups != v1alpha1.BackupsKeep {
		steps = append(
			steps,
			&forgetBackupsStep{tools: p.Tools, migration: p.spec().Name},
			(&namespaceStep{tools: p.Tools, migration: p.spec().Name}).Undo(),
		)
	}
	return append(inOrder(steps...), single(&cleanStep{tools: p.Tools, migration: p.spec().Name})...)
}

func (p *Planner) bridgeOf(e *Entry, svc *corev1.Service) *bridge.Bridge {
	return &bridge.Bridge{Migration: p.spec().Name, Service: svc, Old: e.Old, New: e.New, Form: p.Form}
}

func (p *Planner) bridge(e *Entry) engine.Step {
	return &bridgeStep{planner: p, entry: e}
}

func (p *Planner) hop(e *Entry) engine.Step {
	return &hopStep{planner: p, entry: e}
}

// barrier in mode Wait proves nothing; a finding says so.
func (p *Planner) barrier(name string) engine.Step {
	if p.spec().Barrier == v1alpha1.BarrierWait {
		return &pauseStep{
			id: "barrier/" + name, length: p.spec().BarrierWait, now: p.Tools.Now,
			title: fmt.Sprintf("Give nodes %s to learn the bridges of %s (not proven)", p.spec().BarrierWait, name),
		}
	}
	return p.proof(name)
}

func (p *Planner) proof(name string) *bridge.Barrier {
	b := &bridge.Barrier{
		Probe: p.Tools.Probe, Pool: p.Survey.Pool, Migration: p.spec().Name, Name: name,
		Limit: max(time.Minute, p.spec().BarrierWait),
	}
	if p.Tools.Cluster != nil {
		b.Client = p.Tools.Cluster
	}
	return b
}

func (p *Planner) settle(name string) []engine.Step {
	if p.spec().Settle == 0 {
		return nil
	}
	return []engine.Step{&pauseStep{
		id: "settle/" + name, length: p.spec().Settle, now: p.Tools.Now,
		title: fmt.Sprintf("Let %s settle for %s", name, p.spec().Settle),
	}}
}

func (p *Planner) drain() engine.Step {
	return &drainStep{tools: p.Tools, migration: p.spec().Name, length: p.spec().Drain}
}

func single(s engine.Step) []engine.Group { return inOrder(s) }

func inOrder(steps ...engine.Step) []engine.Group {
	return []engine.Group{{Parallel: 1, Steps: steps}}
}

func mapSteps(entries []*Entry, step func(*Entry) engine.Step) []engine.Step {
	steps := make([]engine.Step, len(entries))
	for i, e := range entries {
		steps[i] = step(e)
	}
	return steps
}

func chunk(entries []*Entry, size int) [][]*Entry {
	var out [][]*Entry
	for len(entries) > size {
		out = append(out, entries[:size])
		entries = entries[size:]
	}
	if len(entries) > 0 {
		out = append(out, entries)
	}
	return out
}
