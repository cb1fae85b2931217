package inplace

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

func (s *Strategy) isNetwork(o *unstructured.Unstructured) bool {
	set := s.Manifests.DaemonSet()
	return set != nil && o.GetKind() == "DaemonSet" && o.GetNamespace() == set.Namespace && o.GetName() == set.Name
}

// startsEverywhere reports whether the programs of the new network start on every node by now,
// those that join among them.
func (s *Strategy) startsEverywhere() bool {
	return s.Manifests != nil && slices.ContainsFunc(s.Manifests.Objects, func(o *unstructured.Unstructured) bool {
		have := s.Present[manifests.KeyOf(o).Full()]
		return s.isNetwork(o) && have != nil && have.GetLabels()[v1alpha1.LabelMigration] == s.Spec.Name && !podnetwork.Marked(have)
	})
}

// staged are the objects of the manifests, changed so that the network does not take over. Its
// programs start on marked nodes alone, or everywhere; to go from one to the other restarts none of
// them.
func (s *Strategy) staged(everywhere bool) ([]*unstructured.Unstructured, error) {
	if s.Manifests == nil {
		return nil, nil
	}
	objects := slices.Clone(s.Manifests.Objects)
	for i, o := range objects {
		var err error
		main := s.isNetwork(o)
		switch {
		case s.Spec.To == v1alpha1.Cilium:
			objects[i], err = podnetwork.StageCilium(o)
		case main:
			objects[i], _, err = podnetwork.Stage(o, s.Spec.To)
		}
		if err == nil && main {
			objects[i], err = podnetwork.KeepPods(objects[i])
		}
		if err == nil && main && !everywhere {
			objects[i], err = podnetwork.WhereMarked(objects[i])
		}
		if err != nil {
			return nil, err
		}
	}
	return objects, nil
}

// changedByStaging are the objects of the manifests that are applied in another form as long as
// both networks run.
func (s *Strategy) changedByStaging() []*unstructured.Unstructured {
	staged, err := s.staged(true)
	if err != nil { // a finding, which blocks
		return nil
	}
	var out []*unstructured.Unstructured
	for i, o := range staged {
		if !reflect.DeepEqual(o.Object, s.Manifests.Objects[i].Object) {
			out = append(out, s.Manifests.Objects[i])
		}
	}
	return out
}

// stage installs the new network beside the old one. Nothing gets an address of it yet.
func (p *Planner) stage() []engine.Group {
	objects, err := p.inPlace.staged(p.inPlace.startsEverywhere())
	if err != nil || len(objects) == 0 || p.Over() { // an error is a finding, which blocks
		return nil
	}
	groups := append(p.Begin("Record that the new network is installed beside the old one"), p.ApplyAll(objects)...)
	for _, round := range p.rounds(p.inPlace.Ordered(engine.Forward, func(*corev1.Node) bool { return true })) {
		groups = append(groups, p.startRound(round, switchover.SetsOf(objects))...)
	}
	return slices.Concat(groups, p.startOnJoining(), p.preserveSources(), p.EachNode(p.checkInPlace))
}

// startRound has the programs of the new network start on some nodes. A loss that they cause ends
// the run before they start on others.
func (p *Planner) startRound(round []string, sets []client.ObjectKey) []engine.Group {
	title := "the new network's start on " + andMore(round)
	var marks []engine.Step
	for _, name := range round {
		marks = append(marks, p.markBeside(name, engine.Forward))
	}
	to := p.Spec().To
	started := switchover.AwaitMarked(p.Deps, "started/"+round[0], fmt.Sprintf("Wait for %s on node %s", to, andMore(round)), to, sets, round)
	return slices.Concat(
		engine.AtOnce(len(round), title, marks...), engine.AtOnce(1, title, started), p.Agents.Steady(title))
}

// startOnJoining has the programs of the new network start on nodes that join from now on: their
// pods are called by pods of both networks.
func (p *Planner) startOnJoining() []engine.Group {
	objects, err := p.inPlace.staged(true)
	if err != nil || p.inPlace.startsEverywhere() {
		return nil
	}
	for _, o := range objects {
		if p.inPlace.isNetwork(o) {
			about := fmt.Sprintf("Let %s start on nodes that join", p.Spec().To)
			return engine.InOrder(p.Deps.ApplyAs("install/open", about, p.Spec().Name, o, true))
		}
	}
	return nil
}

// UnfitNodeError says what keeps a node from having both networks.
type UnfitNodeError struct {
	Node     string
	Problems []string
}

func (e *UnfitNodeError) Error() string {
	return fmt.Sprintf("node %s cannot have both networks: %s", e.Node, strings.Join(e.Problems, "; "))
}

func (*UnfitNodeError) Advice() string {
	return "no node has been switched; correct that on the node and run apply again, or rollback"
}

// checkInPlace has a node looked at before any pod leaves it.
func (p *Planner) checkInPlace(node string) engine.Step {
	s := p.OnNode(nodepod.VerbCheckInPlace, node, "standing", "Verify that node "+node+" can have both networks", p.NetworkArgs(p.Spec().To, node)...)
	s.Evaluate = func(r *nodecleanup.TracesReport) error {
		if len(r.Problems) == 0 {
			return nil
		}
		return &UnfitNodeError{Node: node, Problems: r.Problems}
	}
	return nodepod.ReadOnly{Step: s}
}

// unstage has the new network run as its manifests say: it writes its configuration where runtimes
// read it. Nodes go by replumb's copy until the old network's is gone.
func (p *Planner) unstage() []engine.Group {
	objects := p.inPlace.changedByStaging()
	if len(objects) == 0 {
		return nil
	}
	return append(p.ApplyAll(objects), engine.InOrder(switchover.AwaitRollout(p.Deps, "adopt/rollout", p.Spec().To, switchover.SetsOf(objects)))...)
}
