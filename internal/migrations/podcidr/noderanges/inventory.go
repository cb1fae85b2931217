// Package noderanges moves pods whose ranges are on Nodes: each Node is emptied, recreated with a
// range of the target, and filled again. plan.go lists the phases.
package noderanges

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/spec"
)

// Inventory is what is found in a cluster whose nodes have ranges of their own.
type Inventory struct {
	podmove.Inventory
	NodeRanges []NodeRange
	// Kubeadm is nil unless replumb is to pass gates itself.
	Kubeadm *kubeadmgate.KubeadmState
	// Cilium is nil where another network has pods.
	Cilium *CiliumState
}

var _ podmove.Strategy = (*Inventory)(nil)

// NodeRange is a node whose Node carries the range of its pods.
type NodeRange struct {
	Node *corev1.Node
	// Kept says that its recreation was cut off, Gone that it is not even there.
	Kept, Gone bool
	// Has are its ranges; none, if it has none yet or is gone.
	Has []string
	// Original are the ranges it had before the migration, Target those it is to have after.
	Original, Target []string
	// Doubted says that the Node claims former ranges that it cannot have had.
	Doubted bool
	// claim are the ranges that the Node says it had.
	claim []string
}

// at are the ranges of a node at the end of a direction.
func (r *NodeRange) at(d engine.Direction) []string {
	if d == engine.Backward {
		return r.Original
	}
	return r.Target
}

// there reports whether a node has the ranges that it has at the end of a direction.
func (r *NodeRange) there(d engine.Direction) bool {
	return !r.Gone && !r.Kept && slices.Equal(r.Has, r.at(d))
}

// Outstanding are the nodes that have something to be done on the way in a direction.
func (s *Inventory) Outstanding(d engine.Direction) []*NodeRange {
	crowded := map[string]bool{}
	for _, pod := range s.PodsIn(s.Spec.Left(d)) {
		crowded[pod.Spec.NodeName] = true
	}
	var all []*NodeRange
	for i := range s.NodeRanges {
		r := &s.NodeRanges[i]
		if !r.there(d) || noted(r.Node, v1alpha1.AnnotationReturning) || cordon.Closed(r.Node) || crowded[r.Node.Name] {
			all = append(all, r)
		}
	}
	return all
}

// away reports whether any Node has not the ranges that it has at the end of a direction.
func (s *Inventory) away(d engine.Direction) bool {
	return slices.ContainsFunc(s.NodeRanges, func(r NodeRange) bool { return !r.there(d) })
}

// Sources are what ranges are worked out of, beside the nodes.
type Sources struct {
	Saved map[string]*nodeipam.SavedNode
	// Configured is the cluster's own range of pods; zero, if not known.
	Configured netip.Prefix
	Cilium     *CiliumState
}

// New pairs the ranges of nodes with their targets. It fails with a *spec.Error.
func New(shared *podmove.Inventory, from Sources) (*Inventory, error) {
	s := &Inventory{Inventory: *shared, Cilium: from.Cilium}
	if err := s.foreign(); err != nil {
		return nil, err
	}
	nodes := s.Nodes
	if s.pooled() {
		from.Configured, nodes = s.Cilium.covered(), s.Cilium.carry(s.Nodes)
	}
	var err error
	if s.NodeRanges, s.Spec.From, err = resolve(nodes, s.Spec, from); err != nil {
		return nil, err
	}
	return s, s.strays()
}

// strays says which pod has an address outside of its Node's range.
func (s *Inventory) strays() error {
	known := slices.Concat(s.Spec.From, s.Spec.To)
	if s.Cilium != nil {
		for _, other := range s.Cilium.Others {
			known = append(known, other.Ranges...)
		}
	}
	for i := range s.Workloads.Pods {
		pod := &s.Workloads.Pods[i]
		for _, a := range calico.PodAddresses(pod) {
			if a.Is4() && !podmove.Within(known, a) {
				return &spec.Error{
					Field: podmove.Field,
					Problem: fmt.Sprintf("cannot be done here: pod %s/%s has the address %s, which is not of any range of a Node",
						pod.Namespace, pod.Name, a),
					Hint: "if that range is to be emptied too, name one that has both in " + podmove.Field + ".from",
				}
			}
		}
	}
	return nil
}

func names(all []*NodeRange) []string {
	var out []string
	for _, r := range all {
		out = append(out, "Node "+r.Node.Name)
	}
	return out
}

func (s *Inventory) Switched() bool { return !s.away(engine.Forward) }

// Overlaid implements podmove.Strategy: a node has no pods while its range changes.
func (*Inventory) Overlaid() bool { return false }

func (s *Inventory) KeepsTunnels() bool { return s.holdsAddress() }

func (s *Inventory) Ranges() []podmove.MovedRange {
	place, arrived := podmove.PositionNew, 0
	for i := range s.NodeRanges {
		if s.NodeRanges[i].there(engine.Forward) {
			arrived++
		}
	}
	switch {
	case arrived == len(s.NodeRanges):
	case arrived > 0:
		place = podmove.PositionBoth
	default:
		place = podmove.PositionOld
	}
	var all []podmove.MovedRange
	for _, from := range s.Spec.From {
		all = append(all, podmove.MovedRange{From: from, To: s.Spec.To[0], Place: place})
	}
	return all
}

// Roles are without those for gates where people pass them, or there are none.
func (s *Inventory) Roles() access.Roles {
	if s.pooled() {
		return PoolRoles()
	}
	if s.Kubeadm == nil {
		return Roles().Of(access.View, access.Operate)
	}
	return Roles()
}
