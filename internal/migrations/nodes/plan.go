package nodes

import (
	"cmp"
	"fmt"
	"github.com/replumb/replumb/internal/spec"
	"slices"
	"time"

	"golang.org/x/sync/singleflight"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

const (
	// parallel is how many steps of one group run at once.
	parallel = 32
	// witnesses is how many old nodes the new ones are tried out against.
	witnesses = 3

	phaseDrain = "drain"
)

// Tools are what steps work with. Plans can be made and shown without them.
type Tools struct {
	Cluster *cluster.Cluster
	// Image of replumb for the pods it runs itself.
	Image string
	Now   func() time.Time
}

func (t Tools) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
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
	Findings  findings.Findings
	// Records lead to load balancers, APIRecords to those of the API.
	Records, APIRecords []*dnsrecords.Move
	// Etcd is nil if the control plane stays, or cannot be reached.
	Etcd *etcd.Client
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool
	// Changes are the settings that differ from those recorded.
	Changes []spec.Change

	// turns are whose it is to lose a pod.
	turns *rollout.Turns
	// looking is who reads what many ask for.
	looking singleflight.Group
}

// Apply is the way to the point where nothing runs on old nodes.
func (p *Planner) Apply() *engine.Plan {
	return p.plan(
		hook.Apply,
		engine.Phase{Name: "check", Own: true, Title: "Check the cluster", Groups: inOrder(&migration.CheckStep{Findings: p.Findings})},
		engine.Phase{Name: "secure", Own: true, Recheck: true, Title: "Record the migration and back up what it changes", Groups: p.secure()},
		engine.Phase{Name: "join", Title: "Have new nodes join, and try them out", Groups: p.join()},
		engine.Phase{Name: "ingress", Recheck: true, Title: "Let nodes of both networks answer for what comes from outside", Groups: p.ingress()},
		engine.Phase{Name: "taint", Recheck: true, Title: "Keep new pods off old nodes", Groups: p.taint()},
		engine.Phase{Name: "traffic", Title: "Lead names to the load balancers of the new network", Groups: traffic(p.Records)},
		engine.Phase{Name: phaseDrain, Title: "Empty old nodes", Groups: p.drains(hook.Apply)},
		engine.Phase{Name: "restore", Recheck: true, Title: "Put back who answers for what comes from outside", Groups: p.ingressBack()},
		engine.Phase{Name: "control-plane", Title: "Move the control plane, one node after the other", Groups: p.controlPlane()},
		engine.Phase{
			Name:   "verify",
			Title:  "See that nothing is left on old nodes",
			Groups: p.verify(),
		},
	)
}

// Finish ends what is left of old nodes. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	return p.plan(
		hook.Finish,
		engine.Phase{
			Name:   "verify",
			Title:  "See that nothing is left on old nodes",
			Groups: p.verify(),
		},
		engine.Phase{
			Name: "final", Title: "Pass the point of no return",
			Groups: inOrder(migration.FinalStep(p.Tools.client(), p.spec().Name)),
		},
		engine.Phase{Name: "terminate", Title: "End old nodes", Groups: p.ends()},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidy()},
	)
}

// Rollback brings pods back to those old nodes that are still there.
func (p *Planner) Rollback() *engine.Plan {
	return p.plan(
		hook.Rollback,
		engine.Phase{Name: "reopen", Title: "Let pods onto old nodes again", Groups: p.reopen()},
		engine.Phase{Name: "ingress", Title: "Let nodes of both networks answer for what comes from outside", Groups: p.ingressForReturn()},
		engine.Phase{Name: "traffic", Title: "Lead names back to the load balancers of the old network", Groups: p.trafficBack()},
		engine.Phase{Name: phaseDrain, Title: "Empty new nodes", Groups: p.returns()},
		engine.Phase{Name: "restore", Title: "Put back who answers for what comes from outside", Groups: p.ingressBack()},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidy()},
	)
}

func emptyPlanner() *Planner {
	return &Planner{Survey: &Survey{}, Migration: &v1alpha1.Migration{}}
}

// ApplyPhases are the phases of apply, in order.
func ApplyPhases() []string { return emptyPlanner().Apply().Names() }

// PhaseNames are the phases of all plans, which hooks can name.
func PhaseNames() []string {
	p := emptyPlanner()
	return engine.PhaseNames(p.Apply(), p.Rollback(), p.Finish())
}

// plan puts hooks around phases that have something to do.
func (p *Planner) plan(run hook.Run, phases ...engine.Phase) *engine.Plan {
	return hook.Around(&engine.Plan{Name: p.spec().Name, Phases: phases}, p.spec().Common.Hooks, run)
}

func (p *Planner) hooks(o hook.Occasion) []engine.Group {
	o.Migration = p.spec().Name
	return hook.Groups(p.spec().Common.Hooks, o)
}

func (p *Planner) spec() Spec { return p.Survey.Spec }

func (p *Planner) secure() []engine.Group {
	want := p.Migration.DeepCopy()
	want.Spec.Desired = v1alpha1.DesiredApplied
	steps := []engine.Step{
		&migration.CRDStep{Cluster: p.Tools.Cluster, Upgrade: p.HasCRD},
		p.namespace(),
		&migration.RecordStep{Cluster: p.Tools.Cluster, Want: want, Recorded: p.Recorded, Changes: p.Changes},
		p.remember(),
	}
	if originals := p.originals(); len(originals) > 0 {
		steps = append(
			steps,
			backup.NewStep(p.Tools.client(), want, "secure/backup", fmt.Sprintf("Back up %d objects", len(originals)), originals),
		)
	}
	return inOrder(steps...)
}

// originals are the objects that are about to be changed for the first time.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for _, l := range p.Survey.Leaving() {
		if l.Node != nil && taintOf(l.Node) == nil {
			all = append(all, l.Node)
		}
	}
	for _, svc := range p.Survey.Ingress() {
		if svc.Annotations[v1alpha1.AnnotationTrafficPolicy] == "" {
			all = append(all, svc)
		}
	}
	return all
}

func (p *Planner) namespace() *migration.NamespaceStep {
	return &migration.NamespaceStep{Cluster: p.Tools.Cluster, Migration: p.spec().Name}
}

// image of replumb, for pods that it runs.
func (p *Planner) image() string { return cmp.Or(p.spec().Canary.Image, p.Tools.Image) }

// trial of nodes against each other.
func (p *Planner) trial(on []string) *connectivity.Step {
	return &connectivity.Step{
		Cluster: p.Tools.Cluster, Migration: p.spec().Name, Name: "canary", About: "Try the new nodes out", Image: p.image(),
		Targets: append(slices.Clone(p.spec().Canary.Targets), "kubernetes.default.svc:443"), Only: on, Unfenced: true,
	}
}

// taint keeps pods off what leaves: all of them or, as long as there may not be room for all elsewhere, those with a choice.
func (p *Planner) taint() []engine.Group {
	effect := corev1.TaintEffectNoSchedule
	if p.spec().Join.Room == v1alpha1.RoomPartial {
		effect = corev1.TaintEffectPreferNoSchedule
	}
	var steps []engine.Step
	for _, l := range p.Survey.outstanding(true) {
		steps = append(steps, &closeStep{p.node(l.Name), effect})
	}
	return beside(steps)
}

func (p *Planner) node(name string) nodeStep {
	return nodeStep{tools: p.Tools, spec: p.spec(), name: name}
}

// drains empties what leaves, so many nodes at once, and ends each when it is empty.
func (p *Planner) drains(run hook.Run) []engine.Group {
	ends := p.spec().Terminate.When == v1alpha1.TerminateEach
	all := p.Survey.outstanding(ends)
	var groups []engine.Group
	number := 0
	for round := range slices.Chunk(all, p.parallel(all)) {
		number++
		groups = append(groups, p.round(run, number, round, ends)...)
	}
	return groups
}

func (p *Planner) parallel(all []Leaver) int {
	if len(all) == 0 {
		return 1
	}
	return p.Survey.Spec.parallel(len(p.Survey.Leaving()))
}

// round waits for a window and empties some nodes. What is done to a node, in this order:
func (p *Planner) round(run hook.Run, number int, round []Leaver, ends bool) []engine.Group {
	title := round[0].Name
	if len(round) > 1 {
		title = fmt.Sprintf("%s and %d more", title, len(round)-1)
	}
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 {
		groups = append(groups, engine.Group{Title: title, Steps: []engine.Step{window.NewStep("window/"+title, windows, p.Tools.now)}})
	}
	o := hook.Occasion{Run: run, Moment: v1alpha1.BeforeBatch, Phase: phaseDrain, Batch: number, Nodes: leaverNames(round)}
	groups = append(groups, p.hooks(o)...)
	add := func(make func(*Leaver) engine.Step) {
		g := engine.Group{Title: title, Parallel: len(round)}
		for i := range round {
			g.Steps = append(g.Steps, make(&round[i]))
		}
		groups = append(groups, g)
	}
	if p.spec().Join.Room == v1alpha1.RoomPartial {
		add(func(l *Leaver) engine.Step { return &closeStep{p.node(l.Name), corev1.TaintEffectNoSchedule} })
	}
	add(func(l *Leaver) engine.Step { return &sinceStep{p.node(l.Name)} })
	add(func(l *Leaver) engine.Step { return p.drain(l.Name) })
	add(func(l *Leaver) engine.Step { return p.settled(l.Name) })
	if ends {
		add(func(l *Leaver) engine.Step { return p.terminate(l) })
	}
	groups = append(groups, engine.Group{Title: title, Steps: []engine.Step{&noteStep{tools: p.Tools, spec: p.spec(), after: title}}})
	o.Moment = v1alpha1.AfterBatch
	return append(groups, p.hooks(o)...)
}

func leaverNames(all []Leaver) []string {
	var out []string
	for i := range all {
		out = append(out, all[i].Name)
	}
	return out
}

// ends is what is left to be ended at finish.
func (p *Planner) ends() []engine.Group {
	var steps []engine.Step
	for _, l := range p.Survey.outstanding(true) {
		steps = append(steps, p.terminate(&l))
	}
	return beside(steps)
}

// reopen lets pods onto the old nodes that are still there.
func (p *Planner) reopen() []engine.Group {
	var steps []engine.Step
	for _, l := range p.Survey.Leaving() {
		if l.Reversible() {
			steps = append(steps, &openStep{p.node(l.Name)})
		}
	}
	return beside(steps)
}

// Whole reports whether every old node is still there to go back to.
func (p *Planner) Whole() bool {
	if slices.ContainsFunc(p.Survey.Chiefs(), func(c Chief) bool { return !c.Reversible() }) {
		return false
	}
	return !slices.ContainsFunc(p.Survey.Leaving(), func(l Leaver) bool { return !l.Reversible() })
}

// ingressForReturn switches Services again while their pods go back.
func (p *Planner) ingressForReturn() []engine.Group {
	if !p.Whole() || p.spec().Ingress.Mode != v1alpha1.IngressSwitch {
		return nil
	}
	var steps []engine.Step
	for i := range p.Survey.Services {
		svc := &p.Survey.Services[i]
		moved := slices.ContainsFunc(p.Survey.Pods, func(pod corev1.Pod) bool {
			return selects(svc, &pod) &&
				slices.ContainsFunc(p.Survey.Arrived(), func(n *corev1.Node) bool { return n.Name == pod.Spec.NodeName })
		})
		if local(svc) && moved {
			steps = append(steps, &policyStep{tools: p.Tools, key: client.ObjectKeyFromObject(svc)})
		}
	}
	if len(steps) == 0 {
		return nil
	}
	return append(beside(steps), p.balancers("ingress")...)
}

// returns empties the new nodes, if everything has somewhere to go back to, and leaves them closed: what to do with them is for their
// owner to say.
func (p *Planner) returns() []engine.Group {
	if !p.Whole() {
		return nil
	}
	var groups []engine.Group
	for _, n := range p.Survey.Arrived() {
		steps := []engine.Step{
			&closeStep{
				p.node(n.Name),
				corev1.TaintEffectNoSchedule,
			},
			&sinceStep{p.node(n.Name)},
			p.drain(n.Name),
			p.settled(n.Name),
		}
		groups = append(groups, engine.Group{Title: n.Name, Parallel: 1, Steps: steps})
	}
	return groups
}

func (p *Planner) tidy() []engine.Group {
	return append(p.restoreTTL(), p.forget()...)
}

func (p *Planner) forget() []engine.Group {
	if p.spec().Common.Backups == v1alpha1.BackupsKeep {
		return nil
	}
	return inOrder(&backup.ForgetStep{Client: p.Tools.client(), Migration: p.spec().Name}, p.namespace().Undo())
}

func inOrder(steps ...engine.Step) []engine.Group {
	return []engine.Group{{Parallel: 1, Steps: steps}}
}

func beside(steps []engine.Step) []engine.Group {
	if len(steps) == 0 {
		return nil
	}
	return []engine.Group{{Parallel: parallel, Steps: steps}}
}
