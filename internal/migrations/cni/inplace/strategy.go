package inplace

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
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/network/calico"
)

// Strategy switches nodes one by one, while the cluster serves: both networks are on every node
// meanwhile.
type Strategy struct {
	*switchover.Inventory
	// Workloads are those that nodes are emptied of.
	Workloads rollout.State
	// Spares are the Deployments that get one more pod.
	Spares *spare.Found
	// ProxyReplacement is what Cilium's configuration has to say of kube-proxy.
	ProxyReplacement ProxySettings
}

// Load looks at the workloads that nodes are emptied of.
func Load(ctx context.Context, d switchover.Deps, s *switchover.Inventory) (*Strategy, error) {
	out := New(s)
	var err error
	if out.Workloads.StatefulSets, err = cluster.List[appsv1.StatefulSet](ctx, d.Cluster, &appsv1.StatefulSetList{}); err != nil {
		return nil, err
	}
	out.Spares, err = spare.Load(ctx, d.Cluster, s.Spec.Spares)
	return out, err
}

// New is the strategy for a cluster that was looked at, without its workloads.
func New(s *switchover.Inventory) *Strategy {
	return &Strategy{
		Inventory: s, Workloads: rollout.State{DaemonSets: s.DaemonSets, Deployments: s.Deployments},
		ProxyReplacement: ProxySettings{"false", "beside another network"},
	}
}

// InPlace is what strategies have that switch nodes one by one.
func (s *Strategy) InPlace() *Strategy { return s }

// Unsupported refuses Weave, which cannot be kept beside another network.
func (*Strategy) Unsupported(from, to v1alpha1.CNIName) string {
	switch {
	case from == v1alpha1.HostLocal:
		return switchover.UnsupportedHostLocal(to)
	case from == v1alpha1.Weave && switchover.Overlay(to):
		return switchover.Unsupported(from, to) + " with mode InPlace: Weave cannot be kept beside another network; drain the cluster, and set mode: Drained"
	case to == v1alpha1.Cilium && switchover.Overlay(from), switchover.Overlay(from) && switchover.Overlay(to) && from != to:
		return ""
	}
	return switchover.Unsupported(from, to)
}

// Stale are the pods that have an address of the other network.
func (s *Strategy) Stale(network v1alpha1.CNIName) []corev1.Pod {
	other := s.Target()
	if network == s.Spec.To {
		other = s.Ranges
	}
	var out []corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; switchover.Concerned(p) && hasAddressIn(p, other) {
			out = append(out, *p)
		}
	}
	return out
}

func hasAddressIn(pod *corev1.Pod, ranges []netip.Prefix) bool {
	return slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool { return switchover.Within(ranges, a) })
}

// Stages go by which network a node gives to new pods.
func (s *Strategy) Stages() []switchover.NodeProgress {
	return switchover.NodeStatuses(s, func(n *corev1.Node, stale int) switchover.Stage {
		switch {
		case n.Annotations[v1alpha1.AnnotationPodNetwork] != string(s.Spec.To):
			return switchover.StageOld
		case stale == 0 && !cordon.Closed(n):
			return switchover.StageSwitched
		}
		return switchover.StageNew
	})
}

func (s *Strategy) LeftOfSwitch() string {
	if !s.Begun() {
		return fmt.Sprintf("%s is not installed beside %s", s.Spec.To, s.From())
	}
	if nodes := s.toSwitch(engine.Forward); len(nodes) > 0 {
		return fmt.Sprintf("%s not switched to %s, the first is %s",
			english.Plural(len(nodes), "node is", "nodes are"), s.Spec.To, nodes[0])
	}
	return ""
}

func (s *Strategy) toSwitch(d engine.Direction) []string {
	network, label := s.Spec.To, string(s.Spec.To)
	if d == engine.Backward {
		network, label = s.From(), ""
	}
	stale := map[string]bool{}
	for _, p := range s.Stale(network) {
		stale[p.Spec.NodeName] = true
	}
	return s.Ordered(d, func(n *corev1.Node) bool {
		return n.Annotations[v1alpha1.AnnotationPodNetwork] != label || cordon.Closed(n) || stale[n.Name]
	})
}

func (s *Strategy) notActivated() []string {
	return s.Ordered(engine.Forward, func(n *corev1.Node) bool { return n.Annotations[v1alpha1.AnnotationPodNetwork] != string(s.Spec.To) })
}

// Ordered are the nodes that a condition holds for, by name: those that were named to go first
// lead, and on the way back they are last.
func (s *Strategy) Ordered(d engine.Direction, holds func(*corev1.Node) bool) []string {
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
	if d == engine.Backward {
		slices.Reverse(all)
	}
	return all
}

// masquerades reports whether pods of one network see an address of a node in place of those of
// pods of the other: between Cilium and others packets get one, and answers would go another way
// than they were asked for without it.
func (s *Strategy) masquerades() bool { return s.Spec.To == v1alpha1.Cilium }

// enforcedBeside reports whether NetworkPolicies hold on switched nodes while both networks run.
func (s *Strategy) enforcedBeside() bool { return s.Enforced() && !s.masquerades() }

func (s *Strategy) left(d engine.Direction) []netip.Prefix {
	if d == engine.Backward {
		return s.Target()
	}
	return s.Ranges
}

func (s *Strategy) given(node string, d engine.Direction) []netip.Prefix {
	switch {
	case d == engine.Forward:
		return s.Target()
	case s.From() == v1alpha1.HostLocal:
		return s.OwnRanges(node)
	}
	return s.Ranges
}
