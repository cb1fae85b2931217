package cni

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// parallel is how many objects are changed at once.
const parallel = 16

const phaseRemove = "remove"

// manifestUID is that of manifests among the backups: objects that no API server has given one.
const manifestUID = "replumb.dev/manifest"

// Planner makes plans from a survey.
type Planner struct {
	migration.Base
	Tools  Tools
	Survey *Survey
	// Agents prove on every node what goes on while the cluster serves; nil if there are none.
	Agents *lossguard.Agents
	// Remains takes away what an earlier run has left of agents.
	Remains []engine.Group
}

// phases are those of the mode.
func (p *Planner) phases() migration.Commands[*Planner] {
	if p.spec().Serving {
		return commandsInPlace()
	}
	return commands()
}

// Apply is the way to where every pod has the new network.
func (p *Planner) Apply() *engine.Plan { return p.phases().Apply.Plan(p, p.Migration, hook.Apply) }

// Rollback brings the old network back.
func (p *Planner) Rollback() *engine.Plan {
	return p.phases().Rollback.Plan(p, p.Migration, hook.Rollback)
}

// Finish gives up the way back.
func (p *Planner) Finish() *engine.Plan { return p.phases().Finish.Plan(p, p.Migration, hook.Finish) }

// ApplyPhases are the names of the phases of apply with the mode, in order.
func (s Spec) ApplyPhases() []string {
	if s.Serving {
		return commandsInPlace().Apply.Names()
	}
	return commands().Apply.Names()
}

// PhaseNames are the names of the phases of all commands of both modes, each once. Hooks can name them.
func PhaseNames() []string {
	return union(commands().Names(), commandsInPlace().Names())
}

// AllApplyPhases are the names of the phases of apply of both modes, each once.
func AllApplyPhases() []string {
	return union(commands().Apply.Names(), commandsInPlace().Apply.Names())
}

func union(lists ...[]string) []string {
	var all []string
	for _, name := range slices.Concat(lists...) {
		if !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	return all
}

// Outlines are the phases of all commands, for people.
func Outlines() []migration.Outline {
	return []migration.Outline{commands().Outline("mode Drained"), commandsInPlace().Outline("mode InPlace")}
}

func (p *Planner) spec() Spec { return p.Survey.Spec }

// image of replumb, for pods that it runs.
func (p *Planner) image() pull.Image {
	return pull.Image{Name: p.spec().Canary.Image, Secrets: p.spec().Canary.ImagePullSecrets}.Or(p.Tools.Image)
}

// over reports whether apply went through, and nothing has come up since.
func (p *Planner) over() bool {
	return p.Migration.Status.Phase == v1alpha1.PhaseMoved && p.Survey.Left() == ""
}

// switched reports whether the switch itself went through, and nothing of it has come up since.
func (p *Planner) switched() bool {
	was := p.Migration.Status.Phase == v1alpha1.PhaseMoved || p.Survey.Status.Again != nil
	return was && p.Survey.leftOfSwitch() == ""
}

func (p *Planner) secure() []engine.Group {
	originals := p.originals()
	secure := migration.Securing{
		Sweep: p.sweep(), Privileged: true, Originals: originals, Backup: fmt.Sprintf("Back up %d objects", len(originals)),
	}
	if !p.Survey.begun() {
		secure.Then = []engine.Step{p.status().remember(p.Survey)}
	}
	return p.Secure(secure)
}

// status is what the Migration remembers of this cluster.
func (p *Planner) status() memory { return memory{tools: p.Tools, migration: p.spec().Name} }

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

// sweep ends what the migration may have left running in replumb's namespace.
func (p *Planner) sweep() migration.Sweep { return p.Tools.sweep(p.spec().Name) }

func (p *Planner) matrix(id, title string, keep bool, holds bool) engine.Step {
	return &matrixStep{
		tools: p.Tools, migration: p.spec().Name, name: id, about: title, image: p.image(), targets: p.spec().Canary.Targets,
		baseline: keep, enforced: holds,
	}
}

func (p *Planner) tries() bool { return p.spec().Canary.Mode == v1alpha1.PodCanaryRun }

func (p *Planner) baseline() []engine.Group {
	if p.Survey.begun() {
		return nil
	}
	groups := p.origins()
	if p.tries() {
		groups = append(groups, engine.InOrder(p.matrix("baseline", "Test connectivity with the old network", true, false))...)
	}
	return groups
}

// removeOld deletes the objects of the old network: its programs first, which would write again what nodes are cleaned of.
func (p *Planner) removeOld() []engine.Group {
	var first, then []engine.Step
	for _, o := range p.Survey.Old {
		step := p.Tools.remove(o, phaseRemove, p.Survey.Frozen)
		if keyOf(o).rank() == programs {
			first = append(first, step)
		} else {
			then = append(then, step)
		}
	}
	return append(engine.AtOnce(parallel, "Programs", first...), engine.AtOnce(parallel, "Objects", then...)...)
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

// applyAll applies objects of the manifests, in their order.
func (p *Planner) applyAll(objects []*unstructured.Unstructured) []engine.Group {
	var groups []engine.Group
	for r := definitions; r <= programs; r++ {
		var steps []engine.Step
		for _, o := range objects {
			if keyOf(o).rank() == r {
				steps = append(steps, p.Tools.apply(p.spec().Name, o, p.Survey.Present[keyOf(o).full()] != nil))
			}
		}
		groups = append(groups, engine.AtOnce(r.atOnce(), r.String(), steps...)...)
	}
	return groups
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

func (p *Planner) residues(network v1alpha1.CNIName) []engine.Group {
	var steps []engine.Step
	for _, node := range p.Survey.NodeNames() {
		steps = append(steps, p.residue(network, "residue", node))
	}
	return engine.AtOnce(parallel, "Nodes", steps...)
}

// unapply deletes what was applied, last things first.
func (p *Planner) unapply() []engine.Group {
	var groups []engine.Group
	for r := programs; r >= definitions; r-- {
		var steps []engine.Step
		for _, o := range p.Survey.Manifests.Objects {
			have := p.Survey.Present[keyOf(o).full()]
			ours := have != nil && have.GetLabels()[v1alpha1.LabelMigration] == p.spec().Name
			if keyOf(o).rank() == r && ours && p.original(have) == nil {
				steps = append(steps, p.Tools.remove(have, "withdraw", p.Survey.Frozen))
			}
		}
		groups = append(groups, engine.AtOnce(r.atOnce(), r.String(), steps...)...)
	}
	return groups
}

// original of an object that was there before; nil, if it was not.
func (p *Planner) original(o *unstructured.Unstructured) *unstructured.Unstructured {
	i := slices.IndexFunc(p.Survey.Stored, func(s *unstructured.Unstructured) bool { return keyOf(s) == keyOf(o) })
	if i < 0 {
		return nil
	}
	return p.Survey.Stored[i]
}

// restoreAll brings back the objects that were there before, as they were.
func (p *Planner) restoreAll() []engine.Group {
	var groups []engine.Group
	for r := definitions; r <= programs; r++ {
		var steps []engine.Step
		for _, o := range p.Survey.Stored {
			if keyOf(o).rank() == r {
				steps = append(steps, p.Tools.restore(p.spec().Name, o))
			}
		}
		groups = append(groups, engine.AtOnce(r.atOnce(), r.String(), steps...)...)
	}
	return groups
}

// dismisses reports whether agents are taken away, which restores Pod Security as well.
func (p *Planner) dismisses() bool {
	return p.spec().Serving && (p.Agents != nil || len(p.Remains) > 0)
}

// tidy removes backups and, if the migration may begin again, what the Migration remembers of the cluster.
func (p *Planner) tidy(reset bool) []engine.Group {
	steps := p.Thaw()
	if !p.dismisses() {
		steps = append(steps, p.Unprivilege())
	}
	if !reset {
		return engine.InOrder(append(steps, p.Forget(p.sweep())...)...)
	}
	// What was backed up is in the cluster again.
	return engine.InOrder(append(append(steps, p.ForgetAll(p.sweep())...), p.status().reset())...)
}

// Details say what is removed from every node, and what stays.
func (p *Planner) Details() []string {
	from := p.Survey.from()
	if from == "" || p.over() || p.switched() {
		return nil
	}
	var out []string
	if p.spec().Nodes.Mode == v1alpha1.CNINodesInPlace {
		for _, line := range leftover(from).Describe() {
			out = append(out, "removed from every node: "+line)
		}
	}
	if p.spec().ReplaceProxy {
		for _, line := range leftover(nodecleanup.KubeProxy).Describe() {
			out = append(out, "removed from every node by finish, of kube-proxy: "+line)
		}
	}
	out = append(out, p.Stays()...)
	if p.Survey.wantsAgain() && p.Survey.leftOfSwitch() != "" { // the steps show once there are pods to recreate
		out = append(out, fmt.Sprintf("when all that is done: %s", p.Survey.leftAgain()))
	}
	return out
}

// Stays says what of the old network the migration leaves where it is.
func (p *Planner) Stays() []string {
	from := p.Survey.from()
	if from == v1alpha1.HostLocal {
		return staysOfHostLocal()
	}
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
