package cni

import (
	"cmp"
	"context"
	"fmt"
	"github.com/replumb/replumb/internal/spec"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/backup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
)

// parallel is how many objects are changed at once.
const parallel = 16

const phaseRemove = "remove"

// manifestUID is that of manifests among the backups: objects that no API server has given one.
const manifestUID = "replumb.dev/manifest"

// Planner makes plans from a survey.
type Planner struct {
	Tools     Tools
	Survey    *Survey
	Migration *v1alpha1.Migration
	Findings  findings.Findings
	// HasCRD and Recorded say whether the definition of Migration, and this Migration, are in the cluster already.
	HasCRD   bool
	Recorded bool
	// Changes are the settings that differ from those recorded.
	Changes []spec.Change
}

// Apply is the way to where every pod has the new network.
//
// Pods keep their sandboxes until the new network is there: a kubelet ends a sandbox by the CNI configuration it has at that time
// and, while it has none, not at all. The new plugin does not know it and lets it go; what the old one had on the node is gone by then.
func (p *Planner) Apply() *engine.Plan {
	return p.plan(
		hook.Apply,
		engine.Phase{Name: "check", Title: "Check the cluster", Groups: inOrder(&migration.CheckStep{Findings: p.Findings})},
		engine.Phase{Name: "secure", Title: "Record the migration and back up what it changes", Groups: p.secure()},
		engine.Phase{Name: "baseline", Title: "Find out who reaches whom", Groups: p.baseline()},
		engine.Phase{Name: "quiet", Title: "See that the cluster serves nobody", Groups: p.quiet()},
		engine.Phase{Name: phaseRemove, Title: "Remove the old network", Groups: p.remove()},
		engine.Phase{Name: "install", Title: "Bring the new network up", Groups: p.install()},
		engine.Phase{Name: "pods", Title: "Make every pod anew", Groups: p.pods(p.Survey.Spec.To)},
		engine.Phase{
			Name:   "verify",
			Title:  "See that every pod has the new network, and nothing is left of the old one",
			Groups: p.verify(),
		},
	)
}

// Rollback brings the old network back.
func (p *Planner) Rollback() *engine.Plan {
	return p.plan(
		hook.Rollback,
		engine.Phase{Name: "withdraw", Title: "Remove the new network", Groups: p.withdraw()},
		engine.Phase{Name: "restore", Title: "Bring the old network back", Groups: p.restore()},
		engine.Phase{Name: "pods", Title: "Make every pod anew", Groups: p.podsBack()},
		engine.Phase{Name: "verify", Title: "See that everything is as it was", Groups: p.verifyBack()},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidy(true)},
	)
}

// Finish forgets the way back. Its phase "final" is the point of no return.
func (p *Planner) Finish() *engine.Plan {
	return p.plan(
		hook.Finish,
		engine.Phase{
			Name: "final", Title: "Pass the point of no return",
			Groups: inOrder(&migration.FinalStep{Client: p.Tools.client(), Name: p.spec().Name}),
		},
		engine.Phase{Name: "tidy", Title: "Remove what is left", Groups: p.tidy(false)},
	)
}

// Outstanding implements migration.Plans.
func (p *Planner) Outstanding(ctx context.Context) *engine.Plan {
	return p.Apply().Outstanding(ctx, "secure", "baseline", phaseRemove, "install")
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

func (p *Planner) spec() Spec { return p.Survey.Spec }

// image of replumb, for pods that it runs.
func (p *Planner) image() string { return cmp.Or(p.spec().Canary.Image, p.Tools.Image) }

// over reports whether apply went through, and nothing has come up since.
func (p *Planner) over() bool {
	return p.Migration.Status.Phase == v1alpha1.PhaseMoved && p.Survey.Left() == ""
}

func (p *Planner) secure() []engine.Group {
	want := p.Migration.DeepCopy()
	want.Spec.Desired = v1alpha1.DesiredApplied
	originals := p.originals()
	steps := []engine.Step{
		&migration.CRDStep{Cluster: p.Tools.Cluster, Upgrade: p.HasCRD},
		p.namespace(),
		&migration.PrivilegeStep{Cluster: p.Tools.Cluster},
		&migration.RecordStep{Cluster: p.Tools.Cluster, Want: want, Recorded: p.Recorded, Changes: p.Changes},
	}
	if len(originals) > 0 {
		steps = append(steps,
			backup.NewStep(p.Tools.client(), want, "secure/backup", fmt.Sprintf("Back up %d objects", len(originals)), originals))
	}
	if !p.Survey.begun() {
		steps = append(steps, &rememberStep{tools: p.Tools, survey: p.Survey})
	}
	return inOrder(steps...)
}

// originals are the objects that are about to be deleted or changed, and the manifests, which need not be there on the way back.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for i := range p.Survey.Bare {
		b := p.Survey.Bare[i].DeepCopy()
		b.APIVersion, b.Kind = "v1", "Pod"
		all = append(all, b)
	}
	if p.Survey.begun() {
		return all
	}
	for _, o := range slices.Concat(p.Survey.Old, p.Survey.Policies.Own) {
		all = append(all, o)
	}
	if p.Survey.Manifests == nil {
		return all
	}
	for _, o := range p.Survey.Manifests.Objects {
		marked := o.DeepCopy()
		marked.SetUID(manifestUID)
		all = append(all, marked)
		have := p.Survey.Present[keyOf(o).full()]
		if have != nil && have.GetLabels()[v1alpha1.LabelMigration] != p.spec().Name && !slices.Contains(p.Survey.Old, have) {
			all = append(all, have)
		}
	}
	return all
}

func (p *Planner) namespace() *migration.NamespaceStep {
	return &migration.NamespaceStep{Cluster: p.Tools.Cluster, Migration: p.spec().Name, Sweep: func(ctx context.Context) error {
		return p.Tools.sweep(ctx, p.spec().Name)
	}}
}

func (p *Planner) matrix(id, title string, keep bool, holds bool) engine.Step {
	return &matrixStep{
		tools: p.Tools, migration: p.spec().Name, name: id, about: title, image: p.image(), targets: p.spec().Canary.Targets,
		baseline: keep, enforced: holds,
	}
}

func (p *Planner) tries() bool { return p.spec().Canary.Mode == v1alpha1.PodCanaryRun }

func (p *Planner) baseline() []engine.Group {
	if p.Survey.begun() || !p.tries() {
		return nil
	}
	return inOrder(p.matrix("baseline", "Try out who reaches whom with the old network", true, false))
}

func (p *Planner) quiet() []engine.Group {
	if p.Survey.begun() || !p.spec().Quiet {
		return nil
	}
	return []engine.Group{{Title: "Traffic", Parallel: max(1, len(p.Survey.Nodes)), Steps: p.watches()}}
}

func (p *Planner) remove() []engine.Group {
	if p.Survey.Status.Since != nil && len(p.Survey.Old) == 0 {
		return nil
	}
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 && !p.Survey.begun() {
		groups = inOrder(window.NewStep("window", windows, p.Tools.Now))
	}
	groups = append(groups, inOrder(&beginStep{tools: p.Tools, migration: p.spec().Name})...)
	var first, then []engine.Step
	for _, o := range p.Survey.Old {
		step := &deleteStep{tools: p.Tools, object: o, prefix: phaseRemove}
		if keyOf(o).rank() == programs {
			first = append(first, step)
		} else {
			then = append(then, step)
		}
	}
	groups = append(groups, beside("Programs", first)...)
	groups = append(groups, beside("Objects", then)...)
	if p.spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		return groups
	}
	return append(groups, p.clean(p.Survey.from(), "clean")...)
}

// clean removes what a network has left, on so many nodes at once.
func (p *Planner) clean(network v1alpha1.CNIName, id string) []engine.Group {
	var steps []engine.Step
	for _, node := range p.Survey.NodeNames() {
		steps = append(steps, p.cleaner(network, id, node))
	}
	if len(steps) == 0 {
		return nil
	}
	return []engine.Group{{Title: "Nodes", Parallel: int(p.spec().Nodes.Parallel), Steps: steps}}
}

func (p *Planner) install() []engine.Group {
	if p.Survey.Manifests == nil || p.Survey.Status.Network == p.spec().To && p.Survey.Status.Since != nil {
		return nil
	}
	var groups []engine.Group
	for r := definitions; r <= programs; r++ {
		var steps []engine.Step
		for _, o := range p.Survey.Manifests.Objects {
			if keyOf(o).rank() == r {
				steps = append(steps, &applyStep{
					tools: p.Tools, migration: p.spec().Name, object: o, exists: p.Survey.Present[keyOf(o).full()] != nil,
				})
			}
		}
		groups = append(groups, beside(r.String(), steps)...)
	}
	if p.spec().Nodes.Mode == v1alpha1.CNINodesReplace {
		groups = append(groups, inOrder(&replaceStep{tools: p.Tools, spec: p.spec()})...)
	}
	return append(groups, inOrder(
		&rolloutStep{tools: p.Tools, network: p.spec().To, name: "rollout", sets: setsOf(p.Survey.Manifests.Objects)},
		&sinceStep{tools: p.Tools, migration: p.spec().Name, network: p.spec().To},
	)...)
}

// setsOf are the DaemonSets among objects.
func setsOf(objects []*unstructured.Unstructured) []client.ObjectKey {
	var out []client.ObjectKey
	for _, o := range objects {
		if o.GetKind() == "DaemonSet" {
			out = append(out, client.ObjectKeyFromObject(o))
		}
	}
	return out
}

// pods makes the cluster's DNS anew first: all others ask it as they start.
func (p *Planner) pods(network v1alpha1.CNIName) []engine.Group {
	if network == p.spec().To && p.over() {
		return nil
	}
	renew := anew{tools: p.Tools, spec: p.spec(), network: network}
	steps := []engine.Step{&anewStep{anew: renew, dns: true}, &anewStep{anew: renew}}
	var bare []engine.Step
	for i := range p.Survey.Bare {
		bare = append(bare, &bareStep{anew: renew, pod: &p.Survey.Bare[i]})
	}
	return append(inOrder(steps...), beside("Pods that nobody owns", bare)...)
}

func (p *Planner) verify() []engine.Group {
	if p.over() {
		return nil
	}
	groups := inOrder(&settledStep{tools: p.Tools, spec: p.spec(), network: p.spec().To, ranges: p.Survey.target()})
	if p.spec().Nodes.Mode == v1alpha1.CNINodesInPlace { // other nodes have never had it
		groups = append(groups, p.residues(p.Survey.from())...)
	}
	if p.tries() {
		groups = append(groups, inOrder(p.matrix("matrix", "Try out who reaches whom with the new network", false, p.Survey.enforced()))...)
	}
	return groups
}

func (p *Planner) residues(network v1alpha1.CNIName) []engine.Group {
	var steps []engine.Step
	for _, node := range p.Survey.NodeNames() {
		steps = append(steps, p.residue(network, node))
	}
	return beside("Nodes", steps)
}

// withdraw deletes what was applied, last things first, and cleans the nodes. What was there before stays.
func (p *Planner) withdraw() []engine.Group {
	if !p.Survey.begun() || p.Survey.Manifests == nil {
		return nil
	}
	var groups []engine.Group
	for r := programs; r >= definitions; r-- {
		var steps []engine.Step
		for _, o := range p.Survey.Manifests.Objects {
			have := p.Survey.Present[keyOf(o).full()]
			ours := have != nil && have.GetLabels()[v1alpha1.LabelMigration] == p.spec().Name
			if keyOf(o).rank() == r && ours && p.original(have) == nil {
				steps = append(steps, &deleteStep{tools: p.Tools, object: have, prefix: "withdraw"})
			}
		}
		groups = append(groups, beside(r.String(), steps)...)
	}
	if p.Survey.Status.Network == p.Survey.from() && p.Survey.Status.Since != nil { // this far an earlier run has got
		return groups
	}
	return append(groups, p.clean(p.spec().To, "withdraw/clean")...)
}

// original of an object that was there before; nil, if it was not.
func (p *Planner) original(o *unstructured.Unstructured) *unstructured.Unstructured {
	i := slices.IndexFunc(p.Survey.Stored, func(s *unstructured.Unstructured) bool { return keyOf(s) == keyOf(o) })
	if i < 0 {
		return nil
	}
	return p.Survey.Stored[i]
}

func (p *Planner) restore() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	var groups []engine.Group
	for r := definitions; r <= programs; r++ {
		var steps []engine.Step
		for _, o := range p.Survey.Stored {
			if keyOf(o).rank() == r {
				steps = append(steps, &restoreStep{tools: p.Tools, migration: p.spec().Name, object: o})
			}
		}
		groups = append(groups, beside(r.String(), steps)...)
	}
	return append(groups, inOrder(
		&rolloutStep{tools: p.Tools, network: p.Survey.from(), name: "restore/rollout", sets: setsOf(p.Survey.Stored)},
		&sinceStep{tools: p.Tools, migration: p.spec().Name, network: p.Survey.from()},
	)...)
}

func (p *Planner) podsBack() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	return p.pods(p.Survey.from())
}

func (p *Planner) verifyBack() []engine.Group {
	if !p.Survey.begun() {
		return nil
	}
	groups := inOrder(&settledStep{tools: p.Tools, spec: p.spec(), network: p.Survey.from(), ranges: p.Survey.Ranges})
	groups = append(groups, p.residues(p.spec().To)...)
	if p.tries() {
		groups = append(groups, inOrder(p.matrix("matrix", "Try out who reaches whom", false, p.Survey.from() != v1alpha1.Flannel))...)
	}
	return groups
}

// tidy forgets backups and what the migration remembers. forget says that it may begin anew.
func (p *Planner) tidy(forget bool) []engine.Group {
	var steps []engine.Step
	if p.spec().Common.Backups != v1alpha1.BackupsKeep || forget {
		steps = append(steps, &backup.ForgetStep{Client: p.Tools.client(), Migration: p.spec().Name}, p.namespace().Undo())
	}
	if forget {
		steps = append(steps, &resetStep{tools: p.Tools, migration: p.spec().Name})
	}
	if len(steps) == 0 {
		return nil
	}
	return inOrder(steps...)
}

// Details say what is removed from every node, and what stays.
func (p *Planner) Details() []string {
	from := p.Survey.from()
	if from == "" || p.over() {
		return nil
	}
	var out []string
	if p.spec().Nodes.Mode == v1alpha1.CNINodesInPlace {
		for _, line := range leftover(from).Describe() {
			out = append(out, "removed from every node: "+line)
		}
	}
	return append(out, p.Stays()...)
}

// Stays says what of the old network the migration leaves where it is.
func (p *Planner) Stays() []string {
	from := p.Survey.from()
	out := []string{
		fmt.Sprintf("stays on every node: the plugins of %s in /opt/cni/bin, which are never called without configuration", from),
	}
	if kinds := ownPolicies(from); len(kinds) > 0 {
		var groups []string
		for _, k := range kinds {
			if !slices.Contains(groups, k.Group) {
				groups = append(groups, k.Group)
			}
		}
		out = append(out, "stays in the cluster: definitions and objects of "+strings.Join(groups, ", "))
	}
	return out
}

func inOrder(steps ...engine.Step) []engine.Group {
	return []engine.Group{{Parallel: 1, Steps: steps}}
}

func beside(title string, steps []engine.Step) []engine.Group {
	if len(steps) == 0 {
		return nil
	}
	return []engine.Group{{Title: title, Parallel: parallel, Steps: steps}}
}
