package cni

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/cordon"
	"github.com/replumb/replumb/internal/kube/rollout"
	"github.com/replumb/replumb/internal/kube/spare"
	"github.com/replumb/replumb/internal/network/calico"
)

const (
	forward  = engine.Forward
	backward = engine.Backward
)

// inPlaceStrategy switches nodes one by one, while the cluster serves: both networks are on every node meanwhile.
type inPlaceStrategy struct {
	*Inventory
	// Workloads are those that nodes are emptied of.
	Workloads rollout.State
	// Spares are the Deployments that get one more pod.
	Spares *spare.Found
	// ProxyReplacement is what Cilium's configuration has to say of kube-proxy.
	ProxyReplacement replacement
}

// loadInPlace looks at the workloads that nodes are emptied of.
func loadInPlace(ctx context.Context, d Deps, s *Inventory) (*inPlaceStrategy, error) {
	out := newInPlace(s)
	var err error
	if out.Workloads.StatefulSets, err = cluster.List[appsv1.StatefulSet](ctx, d.Cluster, &appsv1.StatefulSetList{}); err != nil {
		return nil, err
	}
	out.Spares, err = spare.Look(ctx, d.Cluster, s.Spec.Spares)
	return out, err
}

func newInPlace(s *Inventory) *inPlaceStrategy {
	return &inPlaceStrategy{
		Inventory: s, Workloads: rollout.State{DaemonSets: s.DaemonSets, Deployments: s.Deployments},
		ProxyReplacement: replacement{"false", "beside another network"},
	}
}

// InPlace is what strategies have that switch nodes one by one.
func (s *inPlaceStrategy) InPlace() *inPlaceStrategy { return s }

// Unsupported refuses Weave, which cannot be kept beside another network.
func (*inPlaceStrategy) Unsupported(from, to v1alpha1.CNIName) string {
	switch {
	case from == v1alpha1.HostLocal:
		return unsupportedHostLocal(to)
	case from == v1alpha1.Weave && overlay(to):
		return unsupported(from, to) + " with mode InPlace: Weave cannot be kept beside another network; drain the cluster, and set mode: Drained"
	case to == v1alpha1.Cilium && overlay(from), overlay(from) && overlay(to) && from != to:
		return ""
	}
	return unsupported(from, to)
}

// Stale are the pods that have an address of the other network.
func (s *inPlaceStrategy) Stale(network v1alpha1.CNIName) []corev1.Pod {
	other := s.target()
	if network == s.Spec.To {
		other = s.Ranges
	}
	var out []corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; concerned(p) && hasAddressIn(p, other) {
			out = append(out, *p)
		}
	}
	return out
}

// hasAddressIn reports whether a pod has an address of some ranges.
func hasAddressIn(pod *corev1.Pod, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool { return within(ranges, a) })
}

// Stages go by which network a node gives to new pods.
func (s *inPlaceStrategy) Stages() []NodeStatus {
	return nodeStatuses(s, func(n *corev1.Node, stale int) Stage {
		switch {
		case n.Annotations[v1alpha1.AnnotationPodNetwork] != string(s.Spec.To):
			return StageOld
		case stale == 0 && !cordon.Closed(n):
			return StageSwitched
		}
		return StageNew
	})
}

func (s *inPlaceStrategy) LeftOfSwitch() string {
	if !s.begun() {
		return fmt.Sprintf("%s is not installed beside %s", s.Spec.To, s.from())
	}
	if nodes := s.toSwitch(forward); len(nodes) > 0 {
		return fmt.Sprintf("%s not switched to %s, the first is %s",
			english.Plural(len(nodes), "node is", "nodes are"), s.Spec.To, nodes[0])
	}
	return ""
}

// toSwitch are the nodes that are not where a direction goes.
func (s *inPlaceStrategy) toSwitch(d engine.Direction) []string {
	network, label := s.Spec.To, string(s.Spec.To)
	if d == backward {
		network, label = s.from(), ""
	}
	stale := map[string]bool{}
	for _, p := range s.Stale(network) {
		stale[p.Spec.NodeName] = true
	}
	return s.ordered(d, func(n *corev1.Node) bool {
		return n.Annotations[v1alpha1.AnnotationPodNetwork] != label || cordon.Closed(n) || stale[n.Name]
	})
}

// notActivated are the nodes that give new pods the old network.
func (s *inPlaceStrategy) notActivated() []string {
	return s.ordered(forward, func(n *corev1.Node) bool { return n.Annotations[v1alpha1.AnnotationPodNetwork] != string(s.Spec.To) })
}

// ordered are the nodes that a condition holds for, by name: those that were named to go first lead, and on the way back they
// are last.
func (s *inPlaceStrategy) ordered(d engine.Direction, holds func(*corev1.Node) bool) []string {
	var all []string
	for i := range s.Nodes {
		if n := &s.Nodes[i]; holds(n) {
			all = append(all, n.Name)
		}
	}
	rank := func(name string) int {
		if i := slices.Index(s.Spec.InPlace.First, name); i >= 0 {
			return i
		}
		return len(s.Spec.InPlace.First)
	}
	slices.SortFunc(all, func(a, b string) int {
		if ra, rb := rank(a), rank(b); ra != rb {
			return ra - rb
		}
		return strings.Compare(a, b)
	})
	if d == backward {
		slices.Reverse(all)
	}
	return all
}

// masquerades reports whether pods of one network see an address of a node in place of those of pods of the other: between
// Cilium and others packets get one, and answers would go another way than they were asked for without it.
func (s *inPlaceStrategy) masquerades() bool { return s.Spec.To == v1alpha1.Cilium }

// enforcedBeside reports whether NetworkPolicies hold on switched nodes while both networks run.
func (s *inPlaceStrategy) enforcedBeside() bool { return s.enforced() && !s.masquerades() }

// left are the ranges that pods leave where a direction goes.
func (s *inPlaceStrategy) left(d engine.Direction) []netip.Prefix {
	if d == backward {
		return s.target()
	}
	return s.Ranges
}

// given are the ranges that new pods on a node get addresses of where a direction goes.
func (s *inPlaceStrategy) given(node string, d engine.Direction) []netip.Prefix {
	switch {
	case d == forward:
		return s.target()
	case s.from() == v1alpha1.HostLocal:
		return s.ownRanges(node)
	}
	return s.Ranges
}
