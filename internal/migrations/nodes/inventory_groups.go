package nodes

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/nodes/placement"
)

// NodeGroup are old nodes of one kind in one place, with their pods. docs/hooks.md shows some.
type NodeGroup struct {
	// Nodes is how many there are.
	Nodes        int    `json:"nodes"`
	InstanceType string `json:"instanceType,omitempty"`
	Zone         string `json:"zone,omitempty"`
	Architecture string `json:"architecture,omitempty"`
	OS           string `json:"os,omitempty"`
	// Labels are those that pods or volumes ask for, and those that tell spot machines.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []NodeTaint       `json:"taints,omitempty"`
	// Allocatable is what all of them offer, Requests what all pods ask for that have to leave.
	Allocatable corev1.ResourceList `json:"allocatable,omitempty"`
	Requests    corev1.ResourceList `json:"requests,omitempty"`
	// Largest is the most that one of those pods asks for, of each resource.
	Largest corev1.ResourceList `json:"largest,omitempty"`
	// Overhead is the most that pods of DaemonSets ask for on one node.
	Overhead corev1.ResourceList `json:"overhead,omitempty"`
	// Bound is how many of the pods have volumes that can be in some places only.
	Bound int `json:"bound,omitempty"`
}

// NodeTaint is a taint as its owner set it.
type NodeTaint struct {
	Key    string             `json:"key"`
	Value  string             `json:"value,omitempty"`
	Effect corev1.TaintEffect `json:"effect"`
}

// payment are the labels of spot machines.
func payment() []string {
	return []string{
		"karpenter.sh/capacity-type", "eks.amazonaws.com/capacityType", "cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible",
		"kubernetes.azure.com/scalesetpriority",
	}
}

// Groups are the old nodes that are still to be emptied, by what pods can tell them apart by.
func (s *Inventory) Groups() []NodeGroup {
	keys := s.selectedLabels()
	byKind := map[string]*NodeGroup{}
	for _, n := range s.OldNodes() {
		if !n.Reversible() {
			continue
		}
		kind := kindOf(n.Node, keys)
		name := fmt.Sprint(kind)
		if byKind[name] == nil {
			byKind[name] = &kind
		}
		s.count(&n, byKind[name])
	}
	var all []NodeGroup
	for _, name := range slices.Sorted(maps.Keys(byKind)) {
		all = append(all, *byKind[name])
	}
	slices.SortStableFunc(all, func(a, b NodeGroup) int {
		return cmp.Or(strings.Compare(a.InstanceType, b.InstanceType), strings.Compare(a.Zone, b.Zone))
	})
	return all
}

// kindOf is a group that a node would be in, and no node.
func kindOf(n *corev1.Node, keys []string) NodeGroup {
	g := NodeGroup{
		InstanceType: cmp.Or(n.Labels[corev1.LabelInstanceTypeStable], n.Labels[corev1.LabelInstanceType]),
		Zone:         cmp.Or(n.Labels[corev1.LabelTopologyZone], n.Labels[corev1.LabelFailureDomainBetaZone]),
		Architecture: cmp.Or(n.Labels[corev1.LabelArchStable], n.Status.NodeInfo.Architecture),
		OS:           cmp.Or(n.Labels[corev1.LabelOSStable], n.Status.NodeInfo.OperatingSystem),
	}
	for _, key := range keys {
		if value, has := n.Labels[key]; has {
			if g.Labels == nil {
				g.Labels = map[string]string{}
			}
			g.Labels[key] = value
		}
	}
	for _, t := range n.Spec.Taints {
		if !isOurs(t) && !ofKubernetes(t.Key) {
			g.Taints = append(g.Taints, NodeTaint{t.Key, t.Value, t.Effect})
		}
	}
	slices.SortFunc(g.Taints, func(a, b NodeTaint) int {
		return cmp.Or(strings.Compare(a.Key, b.Key), strings.Compare(string(a.Effect), string(b.Effect)))
	})
	return g
}

// ofKubernetes reports whether a taint says how a node is, and not what it is for.
func ofKubernetes(key string) bool {
	return strings.HasPrefix(key, "node.kubernetes.io/") || strings.HasPrefix(key, "node.cloudprovider.kubernetes.io/")
}

func (s *Inventory) count(n *OldNode, g *NodeGroup) {
	g.Nodes++
	g.Allocatable = sum(g.Allocatable, n.Node.Status.Allocatable)
	for _, p := range n.Pods {
		want := placement.Requests(p)
		g.Requests, g.Largest = sum(g.Requests, want), most(g.Largest, want)
		if len(s.affinities(p)) > 0 {
			g.Bound++
		}
	}
	var overhead corev1.ResourceList
	for i := range s.Pods {
		if p := &s.Pods[i]; p.Spec.NodeName == n.Name && stays(p) {
			overhead = sum(overhead, placement.Requests(p))
		}
	}
	g.Overhead = most(g.Overhead, overhead)
}

func sum(all, more corev1.ResourceList) corev1.ResourceList {
	return merged(all, more, func(have, add corev1.ResourceList, name corev1.ResourceName) {
		total := have[name].DeepCopy()
		total.Add(add[name])
		have[name] = total
	})
}

func most(all, more corev1.ResourceList) corev1.ResourceList {
	return merged(all, more, func(have, add corev1.ResourceList, name corev1.ResourceName) {
		if other := add[name]; other.Cmp(have[name]) > 0 {
			have[name] = other
		}
	})
}

func merged(all, more corev1.ResourceList, one func(have, add corev1.ResourceList, name corev1.ResourceName)) corev1.ResourceList {
	for name, amount := range more {
		if amount.IsZero() {
			continue
		}
		if all == nil {
			all = corev1.ResourceList{}
		}
		if _, has := all[name]; !has {
			all[name] = amount.DeepCopy()
			continue
		}
		one(all, more, name)
	}
	return all
}

// affinities are where the volumes of a pod can be, of those that cannot be everywhere.
func (s *Inventory) affinities(p *corev1.Pod) []*corev1.NodeSelector {
	var all []*corev1.NodeSelector
	for i := range p.Spec.Volumes {
		source := p.Spec.Volumes[i].PersistentVolumeClaim
		if source == nil {
			continue
		}
		claim := s.Claims[types.NamespacedName{Namespace: p.Namespace, Name: source.ClaimName}]
		if claim == nil {
			continue
		}
		if v := s.Volumes[claim.Spec.VolumeName]; v != nil && v.Spec.NodeAffinity != nil && v.Spec.NodeAffinity.Required != nil {
			all = append(all, v.Spec.NodeAffinity.Required)
		}
	}
	return all
}

// selectedLabels are the node labels that pods select by, without those unique to a node or with a
// field in NodeGroup.
func (s *Inventory) selectedLabels() []string {
	keys := map[string]bool{}
	for _, key := range payment() {
		keys[key] = true
	}
	for _, n := range s.OldNodes() {
		for _, p := range n.Pods {
			for _, key := range asksFor(p) {
				keys[key] = true
			}
			for _, selector := range s.affinities(p) {
				for _, key := range keysOf(selector) {
					keys[key] = true
				}
			}
		}
	}
	for _, has := range []string{
		corev1.LabelHostname, corev1.LabelInstanceTypeStable, corev1.LabelInstanceType, corev1.LabelTopologyZone,
		corev1.LabelFailureDomainBetaZone, corev1.LabelArchStable, corev1.LabelOSStable, v1alpha1.LabelAgents,
	} {
		delete(keys, has)
	}
	return slices.Sorted(maps.Keys(keys))
}

// asksFor are the labels of nodes that a pod cannot be without.
func asksFor(p *corev1.Pod) []string {
	keys := slices.Collect(maps.Keys(p.Spec.NodeSelector))
	for _, c := range p.Spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			keys = append(keys, c.TopologyKey)
		}
	}
	a := p.Spec.Affinity
	if a == nil {
		return keys
	}
	if a.NodeAffinity != nil {
		keys = append(keys, keysOf(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)...)
	}
	var terms []corev1.PodAffinityTerm
	if a.PodAffinity != nil {
		terms = append(terms, a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	if a.PodAntiAffinity != nil {
		terms = append(terms, a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution...)
	}
	for _, t := range terms {
		keys = append(keys, t.TopologyKey)
	}
	return keys
}

func keysOf(selector *corev1.NodeSelector) (keys []string) {
	if selector == nil {
		return nil
	}
	for _, term := range selector.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			keys = append(keys, e.Key)
		}
	}
	return keys
}
