package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/mirror/certificates"
	"github.com/replumb/replumb/internal/network/dnscutover"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// switchBegins is the step after which names lead to the target.
const switchBegins = "redirect/begin"

// parallel is how many steps of one group run at once.
const parallel = 16

// Planner makes plans from a survey.
type Planner struct {
	migration.Base
	Inventory *Inventory
	// Cutovers are the names on their way.
	Cutovers []*dnscutover.PairedName
	// Dropped are names that an earlier run had prepared, and that are not to move any more.
	Dropped []*dnscutover.PairedName

	source, target *side
	copying        *copying
	finishing      bool
	Agents         *lossguard.Agents
	Remains        []engine.Group
}

var _ migration.Plans = (*Planner)(nil)

func (p *Planner) Counts() v1alpha1.Counts { return p.Inventory.Counts() }

func (p *Planner) Left() string {
	if p.Inventory.Serving() == v1alpha1.ServingTarget || p.finishing {
		return ""
	}
	return "the mirror does not serve yet"
}

func (p *Planner) Early() string { return p.Left() }

// commands are the phases of a mirror. Both ways back switch names to the source and undo what was
// done for the mirror; copies stay.
func commands() migration.Commands[*Planner] {
	type phase = migration.Phase[*Planner]
	ready := phase{Name: "ready", Title: "Wait until the source is ready to serve", Groups: (*Planner).ready}
	back := phase{Name: "return", Title: "Switch names back to the source", Groups: (*Planner).switchBack}
	handBack := phase{
		Name: "handover", Title: "Hand over singletons",
		Groups: func(p *Planner) []engine.Group { return p.handover(engine.Backward) },
	}
	watch := lossguard.Phase(ofSource, (*Planner).watchBack)
	tidy := phase{Name: "tidy", Title: "Undo what was done for the mirror", Groups: (*Planner).tidy}
	return migration.Commands[*Planner]{
		Apply: migration.Phases[*Planner]{
			migration.CheckPhase[*Planner]("Check both clusters"),
			{
				Name:  "secure",
				Title: "Record the migration and back up what it changes",
				Own:   true, Recheck: true, Groups: (*Planner).secure,
			},
			lossguard.Phase(ofSource, (*Planner).watch),
			{Name: "freeze", Title: "Freeze deployments to the source", Recheck: true, Groups: (*Planner).freeze},
			{Name: "certificates", Title: "Add the mirror's names to certificates", Recheck: true, Groups: (*Planner).certificates},
			// Where names lead in the target is known only once it has the objects that say so.
			{Name: "copy", Title: "Copy objects to the target", Groups: (*Planner).copies, Replan: (*Planner).awaits},
			// Before parity: workloads that do not reach their database never become ready.
			{Name: "canary", Title: "Try targets out from pods of the target", Groups: (*Planner).canaries},
			{Name: "lower", Title: "Lower the time to live of names", Groups: (*Planner).lower},
			{Name: "parity", Title: "Compare source and target", Groups: (*Planner).parity},
			{Name: "redirect", Title: "Switch names to the target", Groups: (*Planner).switchOver},
			{
				Name: "handover", Title: "Hand over singletons",
				Groups: func(p *Planner) []engine.Group { return p.handover(engine.Forward) },
			},
		},
		Rollback: migration.Phases[*Planner]{ready, watch, back, handBack, tidy},
		Finish: migration.Phases[*Planner]{
			ready, watch, back, handBack,
			migration.FinalPhase[*Planner](),
			{Name: "takedown", Title: "List what may be taken down", Groups: (*Planner).takedown},
			tidy,
		},
	}
}

func (p *Planner) Apply() *engine.Plan { return commands().Apply.Plan(p, p.Migration, hook.Apply) }

func (p *Planner) Rollback() *engine.Plan {
	return commands().Rollback.Plan(p, p.Migration, hook.Rollback)
}

func (p *Planner) Finish() *engine.Plan { return commands().Finish.Plan(p, p.Migration, hook.Finish) }

// ApplyPhases are the names of the phases of apply, in order.
func ApplyPhases() []string { return commands().Apply.Names() }

// phaseNames are the names of the phases of all commands, which hooks can name.
func phaseNames() []string { return commands().Names() }

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline { return []migration.Outline{commands().Outline("")} }

func (p *Planner) spec() Spec { return p.Inventory.Spec }

func (p *Planner) secure() []engine.Group {
	return p.Secure(migration.Securing{
		Recorded:  []engine.Step{recordClusters(p.Tools.Client(), p.Inventory)},
		Originals: p.Inventory.Originals, Backup: "Back up what is changed in the source",
	})
}

func (p *Planner) freezer() *freeze.Deploys {
	n := p.spec().Copy.Namespaces
	d := &freeze.Deploys{Client: p.Tools.Client(), Migration: p.spec().Name, Copies: true, Include: n.Include, Exclude: n.Exclude}
	for _, kind := range p.spec().FreezeKinds {
		d.More = append(d.More, schema.ParseGroupResource(kind))
	}
	p.Except(d)
	return d
}

func (p *Planner) freeze() []engine.Group {
	steps := p.SuspendGitOps()
	if p.Inventory.Freeze {
		steps = append(steps, p.freezer())
	}
	return engine.InOrder(steps...)
}

func (p *Planner) certificates() []engine.Group {
	var stale, lacking []engine.Step
	for _, c := range p.Inventory.extended() {
		if len(c.Stale) > 0 {
			stale = append(stale, certificates.Withdraw(p.Tools.Client(), c))
		}
	}
	s := p.spec()
	for _, c := range p.Inventory.toExtend() {
		lacking = append(lacking, certificates.Extend(p.Tools.Client(), c, s.aliases()))
	}
	return append(engine.AtOnce(parallel, "", stale...), engine.AtOnce(parallel, "", lacking...)...)
}

func (p *Planner) awaits() bool { return len(p.Inventory.Awaited) > 0 }

// copies are made only as long as the source serves.
func (p *Planner) copies() []engine.Group {
	if p.Inventory.Serving() != v1alpha1.ServingSource {
		return nil
	}
	steps := []engine.Step{p.copying.copy(copyrules.Foundations, p.Inventory)}
	if a := p.spec().Copy.VolumeAction; a != nil {
		steps = append(steps, fillVolumes(p.spec().Name, p.claims(), *a))
	}
	steps = append(steps, p.copying.copy(copyrules.All, p.Inventory), p.copying.count(p.Tools.Client(), p.spec().Name), p.copying.follow())
	if p.awaits() {
		steps = append(steps, awaitReady("copy/addresses", "target", p.awaited))
	}
	return engine.InOrder(steps...)
}

func (p *Planner) claims() []string {
	var out []string
	for _, c := range p.Inventory.Claims {
		_, name, _ := strings.Cut(c.Object, " ")
		out = append(out, name)
	}
	return out
}

func (p *Planner) awaited(ctx context.Context) ([]string, error) {
	found, err := p.target.names(ctx, &p.Inventory.Spec)
	if err != nil {
		return nil, err
	}
	_, left, _ := pair(nil, found, v1alpha1.RedirectSpec{Names: p.awaitedNames()})
	return left, nil
}

func (p *Planner) awaitedNames() []v1alpha1.RedirectName {
	var out []v1alpha1.RedirectName
	for _, n := range p.Inventory.Awaited {
		out = append(out, v1alpha1.RedirectName{Name: n})
	}
	return out
}

func (p *Planner) canaries() []engine.Group {
	if !p.Inventory.Spec.tries() || p.Inventory.Serving() == v1alpha1.ServingTarget {
		return nil
	}
	return engine.InOrder(&canaryStep{
		target: p.target.Cluster, migration: p.spec().Name,
		image:   p.Tools.ImageOf(&p.Inventory.Spec.Common),
		targets: p.spec().Canary.Targets,
	})
}

func (p *Planner) parity() []engine.Group {
	if p.Inventory.Serving() != v1alpha1.ServingSource {
		return nil
	}
	return engine.InOrder(awaitReady("parity/ready", "target", p.copying.unready), p.copying.parity())
}

func (p *Planner) lower() []engine.Group {
	groups := dnscutover.Lower(p.Cutovers)
	if p.Inventory.Serving() == v1alpha1.ServingSource {
		groups = append(groups, dnscutover.Restore(p.Dropped)...)
	}
	return append(
		groups,
		p.foreseen("lower", "Lower the time to live of %s", map[string]any{"ttl": p.spec().Redirect.TTL})...)
}

// foreseen previews changes of names whose target is not known yet. The plan ends before it.
func (p *Planner) foreseen(id, about string, body map[string]any) []engine.Group {
	var steps []engine.Step
	for _, name := range p.Inventory.Awaited {
		steps = append(steps, &engine.Write{
			Name: "foreseen/" + name + "/" + id, About: fmt.Sprintf(about, name),
			Write:   func(context.Context) error { return fmt.Errorf("the target does not say where %s leads", name) },
			Holds:   func(context.Context) error { return engine.NotYet("the target does not say where %s leads", name) },
			Changes: engine.Shows(engine.Change{Verb: "update", Object: "records of " + name, Body: body}),
		})
	}
	return engine.InOrder(steps...)
}

func (p *Planner) options() dnscutover.Options {
	r := p.spec().Redirect
	if p.target == nil { // its load balancer is not waited for
		r.Quiet = nil
	}
	return dnscutover.Options{Migration: p.spec().Name, Parallel: int(r.Parallel), Quiet: r.Quiet, Now: p.Tools.Now}
}

// switchOver switches names to the target, in a window; later, those that were put back since.
func (p *Planner) switchOver() []engine.Group {
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 && len(p.Cutovers) > 0 {
		groups = engine.InOrder(window.NewStep("window/redirect", windows, p.Tools.Now))
	}
	if p.Inventory.Serving() != v1alpha1.ServingTarget {
		groups = append(groups, p.Agents.Heard("names are switched")...)
		groups = append(groups, engine.InOrder(p.serving(switchBegins, v1alpha1.ServingBoth))...)
	}
	groups = append(groups, dnscutover.There(p.Cutovers, p.options())...)
	return append(groups, p.foreseen("switch", "Switch %s to the load balancer that the target gives it",
		map[string]any{"to": "what the target's objects say once they are there"})...)
}

func (p *Planner) switchBack() []engine.Group {
	if p.Inventory.Serving() == v1alpha1.ServingSource {
		return nil
	}
	return append(engine.InOrder(p.serving("return/begin", v1alpha1.ServingBoth)), dnscutover.LeadBack(p.Cutovers, p.options())...)
}

func (p *Planner) ready() []engine.Group {
	if p.Inventory.Serving() == v1alpha1.ServingSource {
		return nil
	}
	return engine.InOrder(awaitReady("ready/source", "source", func(ctx context.Context) ([]string, error) {
		return p.source.unready(ctx, &p.Inventory.Spec)
	}))
}

func (p *Planner) serving(id string, side v1alpha1.ServingSide) engine.Step {
	if id == switchBegins {
		return recordSwitch(p.Tools.Client(), p.Migration, id)
	}
	return recordServing(p.Tools.Client(), p.spec().Name, id, side)
}

func (p *Planner) takedown() []engine.Group {
	if p.target == nil {
		return engine.InOrder(notTakenDown())
	}
	return engine.InOrder(listTakedown(p.spec().Name, p.target))
}

// handover suspends singletons on the side that names have left, and resumes them on the other.
func (p *Planner) handover(to engine.Direction) []engine.Group {
	from, into, serves, id := p.copying.onSource(), p.copying.onTarget(), v1alpha1.ServingTarget, "handover/"
	if to == engine.Backward {
		if p.Inventory.Serving() == v1alpha1.ServingSource {
			return nil
		}
		from, into, serves, id = into, from, v1alpha1.ServingSource, "back/handover/"
	}
	var steps []engine.Step
	if to == engine.Forward {
		steps = append(steps, p.copying.unfollow())
	}
	if from.Side != nil {
		steps = append(steps, from.sleep(id))
	}
	return engine.InOrder(append(steps, into.wake(id), p.serving(id+"serving", serves))...)
}

func (p *Planner) tidy() []engine.Group {
	groups := append(dnscutover.Restore(append(slices.Clone(p.Dropped), p.Cutovers...)), p.Agents.Dismiss()...)
	groups = append(groups, p.Remains...)
	var steps []engine.Step
	for _, c := range p.Inventory.extended() {
		steps = append(steps, certificates.Restore(p.Tools.Client(), c))
	}
	groups = append(groups, engine.AtOnce(parallel, "", steps...)...)
	groups = append(groups, engine.InOrder(append([]engine.Step{p.freezer().Undo()}, p.ResumeGitOps()...)...)...)
	return append(groups, engine.InOrder(p.Forget(migration.Sweep{})...)...)
}
