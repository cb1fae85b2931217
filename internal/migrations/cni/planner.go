package cni

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
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/spec/hook"
	"github.com/replumb/replumb/internal/spec/window"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const phaseRemove = "remove"

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

func (p *Planner) spec() Spec { return p.Inventory.Spec }

// image of replumb, for pods that it runs.
func (p *Planner) image() pull.Image {
	return pull.Image{Name: p.spec().Canary.Image, Secrets: p.spec().Canary.ImagePullSecrets}.Or(p.Deps.Image)
}

// absentSecrets finds the pull secrets that are not there of pods on nodes and of canaries.
func (p *Planner) absentSecrets(ctx context.Context, in client.Reader) ([]findings.Result, error) {
	return p.image().Absent(ctx, in, root+".canary.imagePullSecrets")
}

// frozen reports whether deployments are kept as they are, by another migration or by this one: objects that are to be
// deleted have to be exempted before.
func (p *Planner) frozen() bool { return p.Inventory.Frozen || p.Freezes() }

// over reports whether apply went through, and nothing has come up since.
func (p *Planner) over() bool {
	return p.Migration.Status.Phase == v1alpha1.PhaseMoved && p.Left() == ""
}

// switched reports whether the switch itself went through, and nothing of it has come up since.
func (p *Planner) switched() bool {
	was := p.Migration.Status.Phase == v1alpha1.PhaseMoved || p.Inventory.Status.Again != nil
	return was && p.Strategy.LeftOfSwitch() == ""
}

// record writes down the migration and backs up what it changes.
func (p *Planner) record() []engine.Group {
	originals := p.originals()
	secure := migration.Securing{
		Sweep: p.sweep(), Privileged: true, Originals: originals, Backup: fmt.Sprintf("Back up %d objects", len(originals)),
	}
	if !p.Inventory.begun() {
		secure.Then = []engine.Step{p.status().recordInventory(p.Inventory)}
	}
	return p.Secure(secure)
}

// status is status.cni of this migration.
func (p *Planner) status() status { return status{deps: p.Deps, migration: p.spec().Name} }

// originals are the objects that are about to be deleted or changed, and the manifests: their files need not be there on
// the way back.
func (p *Planner) originals() []client.Object {
	var all []client.Object
	for i := range p.Inventory.Bare {
		b := p.Inventory.Bare[i].DeepCopy()
		b.APIVersion, b.Kind = "v1", "Pod"
		all = append(all, b)
	}
	if p.Inventory.begun() {
		return all
	}
	for _, o := range slices.Concat(p.Inventory.Old, p.Inventory.Policies.Own) {
		all = append(all, o)
	}
	if p.Inventory.Manifests == nil {
		return all
	}
	for _, o := range p.Inventory.Manifests.Objects {
		marked := o.DeepCopy()
		marked.SetUID(manifestUID)
		all = append(all, marked)
		have := p.Inventory.Present[keyOf(o).full()]
		if have != nil && have.GetLabels()[v1alpha1.LabelMigration] != p.spec().Name && !slices.Contains(p.Inventory.Old, have) {
			all = append(all, have)
		}
	}
	return all
}

// sweep ends what the migration may have left running in replumb's namespace.
func (p *Planner) sweep() migration.Sweep { return p.Deps.sweep(p.spec().Name) }

// matrix compares who reaches whom with the baseline. enforced says that policies have to hold.
func (p *Planner) matrix(id, title string, enforced bool) []engine.Group {
	if !p.tries() {
		return nil
	}
	return engine.InOrder(&matrixStep{
		deps: p.Deps, migration: p.spec().Name, name: id, about: title, image: p.image(), targets: p.spec().Canary.Targets, enforced: enforced,
	})
}

func (p *Planner) tries() bool { return p.spec().Canary.Mode == v1alpha1.PodCanaryRun }

func (p *Planner) baseline() []engine.Group {
	if p.Inventory.begun() {
		return nil
	}
	groups := p.detectSources()
	if p.tries() {
		groups = append(groups, engine.InOrder(&matrixStep{
			deps: p.Deps, migration: p.spec().Name, name: "baseline", about: "Test connectivity with the old network",
			image: p.image(), targets: p.spec().Canary.Targets, baseline: true,
		})...)
	}
	return groups
}

// begin waits for a window, the first time, and records that the network of the cluster changes from now on: about says
// what that means for pods.
func (p *Planner) begin(about string) []engine.Group {
	var groups []engine.Group
	if windows := p.spec().Common.Windows; len(windows) > 0 && !p.Inventory.begun() {
		groups = engine.InOrder(window.NewStep("window", windows, p.Deps.Now))
	}
	return append(groups, engine.InOrder(p.status().begin(about))...)
}

// around has the window and the hooks of an occasion around groups. Agents see every probe answered before what comes last.
func (p *Planner) around(title string, o hook.Occasion, groups []engine.Group, last ...engine.Step) []engine.Group {
	var all []engine.Group
	steady := p.Agents.Steady(title)
	if o.Run == hook.Rollback {
		steady = p.Agents.BestEffort(steady)
	} else if windows := p.spec().Common.Windows; len(windows) > 0 {
		all = engine.AtOnce(1, title, window.NewStep("window/"+title, windows, p.Deps.Now))
	}
	before, after := o, o
	before.Moment, after.Moment = v1alpha1.BeforeBatch, v1alpha1.AfterBatch
	return slices.Concat(all, p.Hooks(before), groups, steady, engine.AtOnce(1, title, last...), p.Hooks(after))
}

// eachNode has a step on every node, many at once.
func (p *Planner) eachNode(step func(node string) engine.Step) []engine.Group {
	var steps []engine.Step
	for _, node := range p.Inventory.NodeNames() {
		steps = append(steps, step(node))
	}
	return engine.AtOnce(parallel, "Nodes", steps...)
}

// removeOld deletes the objects of the old network: its programs first, which would write again what nodes are cleaned of.
func (p *Planner) removeOld() []engine.Group {
	var first, then []engine.Step
	for _, o := range p.Inventory.Old {
		step := p.Deps.remove(o, phaseRemove, p.frozen())
		if runs(o) {
			first = append(first, step)
		} else {
			then = append(then, step)
		}
	}
	return append(engine.AtOnce(parallel, "Programs", first...), engine.AtOnce(parallel, "Objects", then...)...)
}

// clean removes what a network has left, on as many nodes at once as the Migration says.
func (p *Planner) clean(network v1alpha1.CNIName, prefix string) []engine.Group {
	groups := p.eachNode(func(node string) engine.Step { return p.cleaner(network, prefix, node) })
	for i := range groups {
		groups[i].Parallel = int(p.spec().Nodes.Parallel)
	}
	return groups
}

// applyAll applies objects of the manifests, in their order.
func (p *Planner) applyAll(objects []*unstructured.Unstructured) []engine.Group {
	return groups(objects, engine.Forward, func(o *unstructured.Unstructured) engine.Step {
		return p.Deps.apply(p.spec().Name, o, p.Inventory.Present[keyOf(o).full()] != nil)
	})
}

// unapply deletes what was applied and was not there before, last things first.
func (p *Planner) unapply() []engine.Group {
	return groups(p.Inventory.Manifests.Objects, engine.Backward, func(o *unstructured.Unstructured) engine.Step {
		have := p.Inventory.Present[keyOf(o).full()]
		if have == nil || have.GetLabels()[v1alpha1.LabelMigration] != p.spec().Name || p.wasThere(have) {
			return nil
		}
		return p.Deps.remove(have, "withdraw", p.frozen())
	})
}

// wasThere reports whether an object was there before the migration.
func (p *Planner) wasThere(o *unstructured.Unstructured) bool {
	return slices.ContainsFunc(p.Inventory.Stored, func(s *unstructured.Unstructured) bool { return keyOf(s) == keyOf(o) })
}

// restoreAll brings back the objects that were there before, as they were.
func (p *Planner) restoreAll() []engine.Group {
	return groups(p.Inventory.Stored, engine.Forward, func(o *unstructured.Unstructured) engine.Step { return p.Deps.restore(p.spec().Name, o) })
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

// residues prove that every node is clean of a network.
func (p *Planner) residues(network v1alpha1.CNIName) []engine.Group {
	return p.eachNode(func(node string) engine.Step { return p.residue(network, "residue", node) })
}

// verifyBack proves that pods have the old network, and nodes nothing of the new one.
func (p *Planner) verifyBack() []engine.Group {
	if !p.Inventory.begun() {
		return nil
	}
	return slices.Concat(
		engine.InOrder(awaitPods(p.Deps, p.spec(), p.Inventory.Ranges)), p.residues(p.spec().To),
		p.matrix("matrix", "Test connectivity", p.Inventory.enforcing()))
}

// tidy removes backups, after first.
func (p *Planner) tidy(first ...engine.Step) []engine.Group {
	return engine.InOrder(slices.Concat(p.Thaw(), first, p.Forget(p.sweep()))...)
}

// tidyAll removes backups, whose objects are in the cluster again, and status.cni, so that the migration may begin again.
func (p *Planner) tidyAll(first ...engine.Step) []engine.Group {
	return engine.InOrder(slices.Concat(p.Thaw(), first, p.ForgetAll(p.sweep()), []engine.Step{p.status().reset()})...)
}

// Details say what is removed from every node, and what stays.
func (p *Planner) Details() []string {
	if p.Inventory.from() == "" || p.over() || p.switched() {
		return nil
	}
	out := slices.Concat(p.Strategy.Removes(), p.Stays())
	if p.Inventory.wantsAgain() && p.Strategy.LeftOfSwitch() != "" { // the steps show once there are pods to recreate
		out = append(out, fmt.Sprintf("when all that is done: %s", p.Inventory.leftAgain()))
	}
	return out
}

// Removes says what of the old network is removed from every node.
func (s *Inventory) Removes() []string {
	if s.Spec.Nodes.Mode != v1alpha1.CNINodesInPlace {
		return nil
	}
	var out []string
	for _, line := range leftover(s.from()).Describe() {
		out = append(out, "removed from every node: "+line)
	}
	return out
}

// leftover is what a network leaves on nodes.
func leftover(network v1alpha1.CNIName) nodecleanup.Network {
	n, _ := nodecleanup.Find(string(network)) // unsupported ones have been refused
	return n
}

// Stays says what of the old network the migration leaves where it is.
func (p *Planner) Stays() []string {
	from := p.Inventory.from()
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

// recordPhase writes down the migration and backs up what it changes.
func recordPhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: "secure", Title: "Record the migration and back up what it changes", Own: true, Recheck: true,
		Groups: func(p P) []engine.Group { return p.Shared().record() },
	}
}

// baselinePhase writes down who reaches whom before anything changes.
func baselinePhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: "baseline", Title: "Test connectivity with the old network", Recheck: true,
		Groups: func(p P) []engine.Group { return p.Shared().baseline() },
	}
}

// verifyBackPhase proves that pods have the old network, and nodes nothing of the new one.
func verifyBackPhase[P shared]() migration.Phase[P] {
	return migration.Phase[P]{
		Name: "verify", Title: "Verify that everything is as it was",
		Groups: func(p P) []engine.Group { return p.Shared().verifyBack() },
	}
}
