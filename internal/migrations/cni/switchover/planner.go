package switchover

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// PhaseRemove removes the old network.
const PhaseRemove = "remove"

// manifestUID is that of manifests among the backups: objects that no API server has given one.
const manifestUID = "replumb.dev/manifest"

// Planner is what the planners of all strategies have. They embed it.
type Planner struct {
	migration.Base
	Deps      Deps
	Inventory *Inventory
	Strategy  Strategy
	// Agents prove on every node what goes on while the cluster serves; nil if there are none.
	Agents *lossguard.Agents
	// Remains takes away what an earlier run has left of agents.
	Remains []engine.Group
}

func (p *Planner) Shared() *Planner { return p }

func (p *Planner) Counts() v1alpha1.Counts { return CountsOf(p.Strategy) }

func (p *Planner) Left() string { return LeftOf(p.Strategy) }

func (p *Planner) Early() string { return p.Left() }

func (p *Planner) Spec() Spec { return p.Inventory.Spec }

func (p *Planner) Image() pull.Image {
	return p.Deps.ImageOf(&p.Inventory.Spec.Common)
}

// AbsentSecrets finds missing pull secrets of all pods of the migration, those of agents among
// them.
func (p *Planner) AbsentSecrets(ctx context.Context, in client.Reader) ([]findings.Result, error) {
	return p.Image().Needed(ctx, in, ": what cleans nodes needs it, without canaries and agents too")
}

// Frozen reports whether deployments are kept as they are, by another migration or by this one:
// objects that are to be deleted have to be exempted before.
func (p *Planner) Frozen() bool { return p.Inventory.Frozen || p.Freezes() }

func (p *Planner) Over() bool {
	return p.Migration.Status.Phase == v1alpha1.PhaseMoved && p.Left() == ""
}

// Switched reports whether the switch itself went through, and nothing of it has come up since.
func (p *Planner) Switched() bool {
	was := p.Migration.Status.Phase == v1alpha1.PhaseMoved || p.Inventory.Status.Again != nil
	return was && p.Strategy.LeftOfSwitch() == ""
}

func (p *Planner) record() []engine.Group {
	originals := p.Inventory.originals()
	secure := migration.Securing{
		Sweep: p.Sweep(), Privileged: true, Originals: originals, Backup: fmt.Sprintf("Back up %d objects", len(originals)),
	}
	if !p.Inventory.Begun() {
		secure.Then = []engine.Step{p.Status().recordInventory(p.Inventory)}
	}
	return p.Secure(secure)
}

func (p *Planner) Status() StatusSteps { return StatusSteps{deps: p.Deps, migration: p.Spec().Name} }

// originals are the objects that are about to be deleted or changed, and the manifests: their files
// need not be there on the way back.
func (s *Inventory) originals() []client.Object {
	var all []client.Object
	for i := range s.Bare {
		b := s.Bare[i].DeepCopy()
		b.APIVersion, b.Kind = "v1", "Pod"
		all = append(all, b)
	}
	if s.Begun() {
		return all
	}
	for _, o := range slices.Concat(s.Old, s.Policies.Own) {
		all = append(all, o)
	}
	if s.Manifests == nil {
		return all
	}
	for _, o := range s.Manifests.Objects {
		marked := o.DeepCopy()
		marked.SetUID(manifestUID)
		all = append(all, marked)
		have := s.Present[manifests.KeyOf(o).Full()]
		if have != nil && have.GetLabels()[v1alpha1.LabelMigration] != s.Spec.Name && !slices.Contains(s.Old, have) {
			all = append(all, have)
		}
	}
	return all
}

func (p *Planner) Sweep() migration.Sweep { return p.Deps.sweep(p.Spec().Name) }

// Matrix compares who reaches whom with the baseline. enforced says that policies have to hold.
func (p *Planner) Matrix(id, title string, enforced bool) []engine.Group {
	if !p.Tries() {
		return nil
	}
	return engine.InOrder(&matrixStep{
		deps: p.Deps, migration: p.Spec().Name, name: id, about: title, image: p.Image(), targets: p.Spec().Canary.Targets, enforced: enforced,
	})
}

func (p *Planner) Tries() bool { return p.Spec().Canary.Mode == v1alpha1.PodCanaryRun }

func (p *Planner) baseline() []engine.Group {
	if p.Inventory.Begun() {
		return nil
	}
	groups := p.detectSources()
	if p.Tries() {
		groups = append(groups, engine.InOrder(&matrixStep{
			deps: p.Deps, migration: p.Spec().Name, name: "baseline", about: "Test connectivity with the old network",
			image: p.Image(), targets: p.Spec().Canary.Targets, baseline: true,
		})...)
	}
	return groups
}

// Begin waits for a window, the first time, and records that the network of the cluster changes
// from now on: about says what that means for pods.
func (p *Planner) Begin(about string) []engine.Group {
	var groups []engine.Group
	if windows := p.Spec().Common.Windows; len(windows) > 0 && !p.Inventory.Begun() {
		groups = engine.InOrder(window.NewStep("window", windows, p.Deps.Now))
	}
	return append(groups, engine.InOrder(p.Status().begin(about))...)
}

// Around has the window and the hooks of an occasion around groups. Agents see every probe answered
// before what comes last.
func (p *Planner) Around(title string, o hook.Occasion, groups []engine.Group, last ...engine.Step) []engine.Group {
	var all []engine.Group
	steady := p.Agents.Steady(title)
	if o.Run == hook.Rollback {
		steady = p.Agents.BestEffort(steady)
	} else if windows := p.Spec().Common.Windows; len(windows) > 0 {
		all = engine.AtOnce(1, title, window.NewStep("window/"+title, windows, p.Deps.Now))
	}
	before, after := o, o
	before.Moment, after.Moment = v1alpha1.BeforeBatch, v1alpha1.AfterBatch
	return slices.Concat(all, p.Hooks(before), groups, steady, engine.AtOnce(1, title, last...), p.Hooks(after))
}

func (p *Planner) EachNode(step func(node string) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, node := range p.Inventory.NodeNames() {
		steps = append(steps, step(node))
	}
	return engine.AtOnce(manifests.Parallel, "Nodes", steps...)
}

// RemoveOld deletes the objects of the old network: its programs first, which would write again
// what nodes are cleaned of.
func (p *Planner) RemoveOld() []engine.Group {
	var first, then []engine.Step
	for _, o := range p.Inventory.Old {
		step := p.Deps.Remove(o, PhaseRemove, p.Frozen())
		if manifests.HasPods(o) {
			first = append(first, step)
		} else {
			then = append(then, step)
		}
	}
	return append(engine.AtOnce(manifests.Parallel, "Programs", first...), engine.AtOnce(manifests.Parallel, "Objects", then...)...)
}

// Clean removes what a network has left, on as many nodes at once as the Migration says.
func (p *Planner) Clean(network v1alpha1.CNIName, prefix string) []engine.Group {
	groups := p.EachNode(func(node string) engine.Step { return p.Cleaner(network, prefix, node) })
	for i := range groups {
		groups[i].Parallel = int(p.Spec().Nodes.Parallel)
	}
	return groups
}

func (p *Planner) ApplyAll(objects []*unstructured.Unstructured) []engine.Group {
	return manifests.Groups(objects, engine.Forward, func(o *unstructured.Unstructured) engine.Step {
		return p.Deps.Apply(p.Spec().Name, o, p.Inventory.Present[manifests.KeyOf(o).Full()] != nil)
	})
}

// Unapply deletes what was applied and was not there before, last things first.
func (p *Planner) Unapply() []engine.Group {
	return manifests.Groups(p.Inventory.Manifests.Objects, engine.Backward, func(o *unstructured.Unstructured) engine.Step {
		have := p.Inventory.Present[manifests.KeyOf(o).Full()]
		before := have != nil && slices.ContainsFunc(p.Inventory.Stored, func(s *unstructured.Unstructured) bool {
			return manifests.KeyOf(s) == manifests.KeyOf(have)
		})
		if have == nil || before || have.GetLabels()[v1alpha1.LabelMigration] != p.Spec().Name {
			return nil
		}
		return p.Deps.Remove(have, "withdraw", p.Frozen())
	})
}

func (p *Planner) RestoreAll() []engine.Group {
	return manifests.Groups(p.Inventory.Stored, engine.Forward, func(o *unstructured.Unstructured) engine.Step { return p.Deps.restore(p.Spec().Name, o) })
}

// SetsOf are the DaemonSets among objects.
func SetsOf(objects []*unstructured.Unstructured) []client.ObjectKey {
	var out []client.ObjectKey
	for _, o := range objects {
		if o.GetKind() == "DaemonSet" {
			out = append(out, client.ObjectKeyFromObject(o))
		}
	}
	return out
}

func (p *Planner) Residues(network v1alpha1.CNIName) []engine.Group {
	return p.EachNode(func(node string) engine.Step { return p.Residue(network, "residue", node) })
}

func (p *Planner) verifyBack() []engine.Group {
	if !p.Inventory.Begun() {
		return nil
	}
	return slices.Concat(
		engine.InOrder(AwaitPods(p.Deps, p.Spec(), p.Inventory.Ranges)), p.Residues(p.Spec().To),
		p.Matrix("matrix", "Test connectivity", p.Inventory.Enforcing()))
}

// Tidy removes backups, after first.
func (p *Planner) Tidy(first ...engine.Step) []engine.Group {
	return engine.InOrder(slices.Concat(p.Thaw(), first, p.Forget(p.Sweep()))...)
}

// TidyAll removes backups, whose objects are in the cluster again, and status.cni, so that the
// migration may begin again.
func (p *Planner) TidyAll(first ...engine.Step) []engine.Group {
	return engine.InOrder(slices.Concat(p.Thaw(), first, p.ForgetAll(p.Sweep()), []engine.Step{p.Status().reset()})...)
}

func (p *Planner) Details() []string {
	if p.Inventory.From() == "" || p.Over() || p.Switched() {
		return nil
	}
	out := slices.Concat(p.Strategy.Removes(), p.Stays())
	if p.Inventory.wantsAgain() && p.Strategy.LeftOfSwitch() != "" { // the steps show once there are pods to recreate
		out = append(out, fmt.Sprintf("when all that is done: %s", p.Inventory.leftAgain()))
	}
	return out
}

func (s *Inventory) Removes() []string {
	if s.Spec.Nodes.Mode != v1alpha1.CNINodesInPlace {
		return nil
	}
	var out []string
	for _, line := range Leftover(s.From()).Describe() {
		out = append(out, "removed from every node: "+line)
	}
	return out
}

// Leftover is what a network leaves on nodes.
func Leftover(network v1alpha1.CNIName) nodecleanup.NetworkTraces {
	n, _ := nodecleanup.Find(string(network)) // unsupported ones have been refused
	return n
}

// Stays says what of the old network the migration leaves where it is.
func (p *Planner) Stays() []string {
	from := p.Inventory.From()
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

// shared is a planner that embeds Planner.
type shared interface {
	migration.Planner
	Shared() *Planner
}

// RecordPhase writes down the migration and backs up what it changes.
func RecordPhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: "secure", Title: "Record the migration and back up what it changes", Own: true, Recheck: true,
		Groups: func(p P) []engine.Group { return p.Shared().record() },
	}
}

// BaselinePhase writes down who reaches whom before anything changes.
func BaselinePhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: "baseline", Title: "Test connectivity with the old network", Recheck: true,
		Groups: func(p P) []engine.Group { return p.Shared().baseline() },
	}
}

// VerifyBackPhase proves that pods have the old network, and nodes nothing of the new one.
func VerifyBackPhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: "verify", Title: "Verify that everything is as it was",
		Groups: func(p P) []engine.Group { return p.Shared().verifyBack() },
	}
}
