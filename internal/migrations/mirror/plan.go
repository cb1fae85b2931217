package mirror

import (
	"context"
	"github.com/replumb/replumb/internal/spec"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnscutover"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
)

// parallel is how many steps of one group run at once.
const parallel = 16

const (
	phaseCopy     = "copy"
	phaseRedirect = "redirect"
)

// Planner makes plans from a survey.
type Planner struct {
	Tools     Tools
	Survey    *Survey
	Migration *v1alpha1.Migration
	Findings  findings.Findings
	// Leads are the names on their way.
	Leads []*dnscutover.Lead
	// Both are nil when plans are only named.
	source, target *side
	// copying is shared by the steps of one run.
	copying *copying
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool
	// Changes are the settings that differ from those recorded.
	Changes []spec.Change
	// finishing says that finish has begun.
	finishing bool
}

var _ migration.Plans = (*Planner)(nil)

// Found implements migration.Plans.
func (p *Planner) Found() findings.Findings { return p.Findings }

// Counts implements migration.Plans.
func (p *Planner) Counts() v1alpha1.Counts { return p.Survey.Counts() }

// Left implements migration.Plans. A finish that was cut off may have led names back already.
func (p *Planner) Left() string {
	if p.Survey.Serving() == v1alpha1.ServingTarget || p.finishing {
		return ""
	}
	return "the mirror does not serve yet"
}

// Early implements migration.Plans.
func (p *Planner) Early() string { return p.Left() }

// Apply is the way to the point where the target serves. As long as the target cannot say where names lead there, it goes as far as
// the copy: then there is another look.
func (p *Planner) Apply() *engine.Plan {
	plan := p.apply()
	if len(p.Survey.Awaited) > 0 {
		if part, err := plan.Until(phaseCopy); err == nil {
			return part
		}
	}
	return plan
}

func (p *Planner) apply() *engine.Plan {
	return p.plan(
		hook.Apply,
		engine.Phase{Name: "check", Title: "Check both clusters", Groups: inOrder(&migration.CheckStep{Findings: p.Findings})},
		engine.Phase{Name: "secure", Title: "Record the migration and back up what it changes", Groups: p.secure()},
		engine.Phase{Name: "freeze", Title: "Keep others from deploying to the source", Groups: p.freeze()},
		engine.Phase{Name: "certificates", Title: "Have certificates be good for the mirror's names too", Groups: p.certificates()},
		engine.Phase{Name: phaseCopy, Title: "Copy objects to the target", Groups: p.copies()},
		engine.Phase{Name: "lower", Title: "Lower the time to live of names", Groups: p.lower()},
		engine.Phase{Name: "parity", Title: "See that the target is what the source is", Groups: p.parity()},
		engine.Phase{Name: phaseRedirect, Title: "Lead names to the target", Groups: p.there()},
		engine.Phase{Name: "handover", Title: "Hand over what must not run twice", Groups: p.handover(forth)},
	)
}

// Finish takes the names back, and then what was done for the mirror. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	return p.plan(
		hook.Finish,
		engine.Phase{Name: "ready", Title: "See that the source is ready to serve", Groups: p.ready()},
		engine.Phase{Name: "return", Title: "Lead names back to the source", Groups: p.home()},
		engine.Phase{Name: "handover", Title: "Hand over what must not run twice", Groups: p.handover(back)},
		engine.Phase{
			Name: "final", Title: "Pass the point of no return",
			Groups: inOrder(&migration.FinalStep{Client: p.Tools.client(), Name: p.spec().Name}),
		},
		engine.Phase{
			Name:   "takedown",
			Title:  "Name what may be taken down",
			Groups: inOrder(&takedownStep{spec: p.spec(), target: p.target}),
		},
		engine.Phase{Name: "tidy", Title: "Take back what was done for the mirror", Groups: p.tidy()},
	)
}

// Rollback takes the names back from wherever they are, and then what was done for the mirror. Copies stay.
func (p *Planner) Rollback() *engine.Plan {
	return p.plan(
		hook.Rollback,
		engine.Phase{Name: "ready", Title: "See that the source is ready to serve", Groups: p.ready()},
		engine.Phase{Name: "return", Title: "Lead names back to the source", Groups: p.home()},
		engine.Phase{Name: "handover", Title: "Hand over what must not run twice", Groups: p.handover(back)},
		engine.Phase{Name: "tidy", Title: "Take back what was done for the mirror", Groups: p.tidy()},
	)
}

// Outstanding implements migration.Plans.
func (p *Planner) Outstanding(ctx context.Context) *engine.Plan {
	return p.Apply().Outstanding(ctx, "secure", "freeze", "certificates")
}

func emptyPlanner() *Planner {
	return &Planner{Survey: &Survey{}, Migration: &v1alpha1.Migration{}, copying: &copying{}}
}

// ApplyPhases are the phases of apply, in order.
func ApplyPhases() []string { return emptyPlanner().apply().Names() }

// PhaseNames are the phases of all plans, which hooks can name.
func PhaseNames() []string {
	p := emptyPlanner()
	return engine.PhaseNames(p.apply(), p.Rollback(), p.Finish())
}

// plan puts hooks around phases that have something to do.
func (p *Planner) plan(run hook.Run, phases ...engine.Phase) *engine.Plan {
	return hook.Around(&engine.Plan{Name: p.spec().Name, Phases: phases}, p.spec().Common.Hooks, run)
}

func (p *Planner) spec() Spec { return p.Survey.Spec }

func (p *Planner) secure() []engine.Group {
	want := p.Migration.DeepCopy()
	want.Spec.Desired = v1alpha1.DesiredApplied
	steps := []engine.Step{
		&migration.CRDStep{Cluster: p.Tools.Source, Upgrade: p.HasCRD},
		p.namespace(),
		&migration.RecordStep{Cluster: p.Tools.Source, Want: want, Recorded: p.Recorded, Changes: p.Changes},
		&rememberStep{tools: p.Tools, survey: p.Survey},
	}
	if len(p.Survey.Originals) > 0 {
		steps = append(
			steps,
			backup.NewStep(p.Tools.client(), want, "secure/backup", "Back up what is changed in the source", p.Survey.Originals),
		)
	}
	return inOrder(steps...)
}

func (p *Planner) namespace() *migration.NamespaceStep {
	return &migration.NamespaceStep{Cluster: p.Tools.Source, Migration: p.spec().Name}
}

func (p *Planner) freezer() *freeze.Deploys {
	n := p.spec().Copy.Namespaces
	return &freeze.Deploys{Client: p.Tools.client(), Migration: p.spec().Name, Include: n.Include, Exclude: n.Exclude}
}

func (p *Planner) freeze() []engine.Group {
	if !p.Survey.Freeze {
		return nil
	}
	return inOrder(p.freezer())
}

func (p *Planner) certificates() []engine.Group {
	if p.spec().Certificates != v1alpha1.CertificatesExtend {
		return nil
	}
	var steps []engine.Step
	for _, c := range p.Survey.toExtend() {
		steps = append(steps, &certificateStep{client: p.Tools.client(), of: c, aliases: p.spec().Hosts})
	}
	return beside(steps)
}

// copies are made only as long as the source serves: from then on, the target has a life of its own.
func (p *Planner) copies() []engine.Group {
	if p.Survey.Serving() != v1alpha1.ServingSource {
		return nil
	}
	steps := []engine.Step{&copyStep{copying: p.copying, part: objectsync.Foundations}}
	if a := p.spec().Copy.VolumeAction; a != nil {
		steps = append(steps, &volumeStep{spec: p.spec(), claims: p.claims(), action: *a})
	}
	steps = append(steps, &copyStep{copying: p.copying, part: objectsync.All}, &followStep{p.copying})
	if len(p.Survey.Awaited) > 0 {
		steps = append(steps, &readyStep{name: "copy/addresses", about: "target", ready: p.awaited})
	}
	return inOrder(steps...)
}

func (p *Planner) claims() []string {
	var out []string
	for _, c := range p.Survey.Claims {
		_, name, _ := strings.Cut(c.Object, " ")
		out = append(out, name)
	}
	return out
}

// awaited tells which names the target still does not know where to lead.
func (p *Planner) awaited(ctx context.Context) ([]string, error) {
	found, err := p.target.names(ctx, &p.Survey.Spec)
	if err != nil {
		return nil, err
	}
	_, left, _ := pair(nil, found, v1alpha1.RedirectSpec{Names: p.awaitedNames()})
	return left, nil
}

// awaitedNames are those names as a spec has them.
func (p *Planner) awaitedNames() []v1alpha1.RedirectName {
	var out []v1alpha1.RedirectName
	for _, n := range p.Survey.Awaited {
		out = append(out, v1alpha1.RedirectName{Name: n})
	}
	return out
}

func (p *Planner) parity() []engine.Group {
	if p.Survey.Serving() != v1alpha1.ServingSource {
		return nil
	}
	return inOrder(&readyStep{name: "parity/ready", about: "target", ready: p.copying.unready}, &parityStep{p.copying})
}

func (p *Planner) lower() []engine.Group { return dnscutover.Lower(p.Leads) }

func (p *Planner) options() dnscutover.Options {
	r := p.spec().Redirect
	return dnscutover.Options{Migration: p.spec().Name, Parallel: int(r.Parallel), Quiet: r.Quiet, Now: p.Tools.Now}
}

// there leads names to the target, in a window. Once the target serves, that is for names that somebody has put back.
func (p *Planner) there() []engine.Group {
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 && len(p.Leads) > 0 {
		groups = inOrder(window.NewStep("window/redirect", windows, p.Tools.now))
	}
	if p.Survey.Serving() != v1alpha1.ServingTarget {
		groups = append(groups, inOrder(p.serving("redirect/begin", v1alpha1.ServingBoth))...)
	}
	return append(groups, dnscutover.There(p.Leads, p.options())...)
}

// home leads names back to the source.
func (p *Planner) home() []engine.Group {
	if p.Survey.Serving() == v1alpha1.ServingSource {
		return nil
	}
	return append(inOrder(p.serving("return/begin", v1alpha1.ServingBoth)), dnscutover.Home(p.Leads, p.options())...)
}

// ready sees to it that the source can serve again, if it has to.
func (p *Planner) ready() []engine.Group {
	if p.Survey.Serving() == v1alpha1.ServingSource {
		return nil
	}
	return inOrder(&readyStep{name: "ready/source", about: "source", ready: func(ctx context.Context) ([]string, error) {
		return p.source.unready(ctx, &p.Survey.Spec)
	}})
}

func (p *Planner) serving(id string, side v1alpha1.ServingSide) *servingStep {
	return &servingStep{client: p.Tools.client(), migration: p.spec().Name, name: id, side: side}
}

// handover puts singletons to sleep on the side that names have left, and wakes them where names lead.
func (p *Planner) handover(to direction) []engine.Group {
	from, into, serves := p.copying.onSource(), p.copying.onTarget(), v1alpha1.ServingTarget
	if to == back {
		from, into, serves = into, from, v1alpha1.ServingSource
	}
	if to == back && p.Survey.Serving() == v1alpha1.ServingSource {
		return nil
	}
	var steps []engine.Step
	if to == forth {
		steps = append(steps, &unfollowStep{p.copying})
	}
	return inOrder(append(steps,
		&sleepStep{to: to, of: from}, &wakeStep{to: to, of: into},
		p.serving(string(to)+"serving", serves))...)
}

func (p *Planner) tidy() []engine.Group {
	groups := dnscutover.Restore(p.Leads)
	var steps []engine.Step
	for _, c := range p.Survey.extended() {
		steps = append(steps, (&certificateStep{client: p.Tools.client(), of: c}).Undo())
	}
	groups = append(groups, beside(steps)...)
	groups = append(groups, inOrder(p.freezer().Undo())...)
	if p.spec().Common.Backups == v1alpha1.BackupsKeep {
		return groups
	}
	return append(groups, inOrder(&backup.ForgetStep{Client: p.Tools.client(), Migration: p.spec().Name}, p.namespace().Undo())...)
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
