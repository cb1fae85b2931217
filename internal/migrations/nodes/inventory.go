package nodes

import (
	"cmp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// controlPlaneLabel is on Nodes of control planes (k8s.io/kubernetes cmd/kubeadm/app/constants,
// LabelNodeRoleControlPlane).
const controlPlaneLabel = "node-role.kubernetes.io/control-plane"

// Inventory is what a migration finds.
type Inventory struct {
	Spec      Spec
	Nodes     []corev1.Node
	Pods      []corev1.Pod
	Workloads *rollout.State
	Spares    *spare.Found
	// Services with externalTrafficPolicy Local, or that had it before the migration.
	Services []corev1.Service
	// Selecting are the Services with a selector, Balanced says that one is of type LoadBalancer.
	Selecting []corev1.Service
	Balanced  bool
	// Volumes by name, Claims by namespace/name.
	Volumes map[string]*corev1.PersistentVolume
	Claims  map[types.NamespacedName]*corev1.PersistentVolumeClaim
	// Autoscalers are Deployments that create and delete nodes by themselves.
	Autoscalers []types.NamespacedName
	Recorded    []v1alpha1.NodeStatus
	// Tier is how critical a pod's workload is, from the least; nil, if not known.
	Tier func(*corev1.Pod) int
	// Etcd are its members; nil, if the control plane stays.
	Etcd *etcd.Membership
	// Events are the members of the second etcd; nil, if there is none that moves.
	Events *etcd.Membership
	// Policies are the NetworkPolicies, CalicoPolicies those of Calico's own kinds.
	Policies       []networkingv1.NetworkPolicy
	CalicoPolicies []*unstructured.Unstructured
}

// OldNode is a worker that is to be emptied and terminated.
type OldNode struct {
	Name string
	Node *corev1.Node
	// Ended says that its termination has been asked for.
	Ended bool
	Pods  []*corev1.Pod
}

// Stage of an old node.
type Stage string

// The stages.
const (
	StageServing Stage = "Serving"
	StageClosed  Stage = "Closed"
	StageEmpty   Stage = "Empty"
	StageEnding  Stage = "Ending"
	StageGone    Stage = "Gone"
)

func (n *OldNode) Stage() Stage {
	switch {
	case n.Node == nil:
		return StageGone
	case n.Ended:
		return StageEnding
	case taintOf(n.Node) == nil:
		return StageServing
	case len(n.Pods) > 0:
		return StageClosed
	}
	return StageEmpty
}

// Reversible reports whether it can still take its pods back.
func (n *OldNode) Reversible() bool { return n.Node != nil && !n.Ended }

func isControlPlane(n *corev1.Node) bool {
	_, is := n.Labels[controlPlaneLabel]
	return is
}

// OldNodes are the workers of the old network, those that are gone included, by name.
func (s *Inventory) OldNodes() []OldNode {
	byName := map[string]*OldNode{}
	for _, r := range s.Recorded {
		if r.Role == v1alpha1.RoleWorker {
			byName[r.Name] = &OldNode{Name: r.Name, Ended: r.Ended}
		}
	}
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if l := byName[n.Name]; l != nil {
			l.Node = n
		} else if s.Spec.Old.Has(n) && !isControlPlane(n) {
			byName[n.Name] = &OldNode{Name: n.Name, Node: n}
		}
	}
	for i := range s.Pods {
		p := &s.Pods[i]
		if l := byName[p.Spec.NodeName]; l != nil && leaves(p) {
			l.Pods = append(l.Pods, p)
		}
	}
	var all []OldNode
	for _, l := range byName {
		all = append(all, *l)
	}
	slices.SortFunc(all, func(a, b OldNode) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// leaves reports whether a pod has to leave: not of a DaemonSet, static, ended or replumb's own.
func leaves(p *corev1.Pod) bool {
	if _, static := p.Annotations[corev1.MirrorPodAnnotationKey]; static || p.Labels[connectivity.Label] != "" || leaving.Marked(p, "") {
		return false
	}
	ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	return !ended && !ofDaemonSet(p)
}

func ofDaemonSet(p *corev1.Pod) bool {
	ref := metav1.GetControllerOfNoCopy(p)
	return ref != nil && ref.Kind == rollout.KindDaemonSet
}

func (s *Inventory) NewNodes() []*corev1.Node {
	var all []*corev1.Node
	for i := range s.Nodes {
		n := &s.Nodes[i]
		if s.Spec.New.Has(n) && !isControlPlane(n) && s.Spec.New.WrongNetwork(n) == "" {
			all = append(all, n)
		}
	}
	return all
}

func (s *Inventory) ReadyNewNodes() []*corev1.Node {
	return slices.DeleteFunc(s.NewNodes(), func(n *corev1.Node) bool { return !inventory.NodeReady(n) || n.Spec.Unschedulable })
}

func (s *Inventory) Wanted() int { return cmp.Or(s.Spec.Join.Count, len(s.OldNodes())) }

// outstanding are the old nodes still to be emptied or, with end, terminated: first those with
// ingress, then by their most critical tier, then by name.
func (s *Inventory) outstanding(end bool) []OldNode {
	var all []OldNode
	rank := map[string]int{}
	for _, l := range s.OldNodes() {
		stage := l.Stage()
		if stage == StageGone || stage == StageEmpty && !end {
			continue
		}
		all = append(all, l)
		rank[l.Name] = s.rank(&l)
	}
	slices.SortStableFunc(all, func(a, b OldNode) int {
		return cmp.Or(cmp.Compare(rank[a.Name], rank[b.Name]), strings.Compare(a.Name, b.Name))
	})
	return all
}

// rank of a node: its most critical tier, counted from 1, or 0 if it carries what moves first.
func (s *Inventory) rank(n *OldNode) int {
	if slices.ContainsFunc(n.Pods, s.isFirst) {
		return 0
	}
	most := 1
	for _, p := range n.Pods {
		if s.Tier != nil {
			most = max(most, 1+s.Tier(p))
		}
	}
	return most
}

// isFirst reports whether a pod moves first: of a named workload or, without names, of ingress.
func (s *Inventory) isFirst(p *corev1.Pod) bool {
	if len(s.Spec.First) == 0 {
		return slices.ContainsFunc(s.Services, func(svc corev1.Service) bool { return selects(&svc, p) })
	}
	return slices.Contains(s.Spec.First, s.workloadOf(p))
}

func (s *Inventory) workloadOf(p *corev1.Pod) types.NamespacedName {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil {
		return types.NamespacedName{}
	}
	for i := range s.Workloads.ReplicaSets {
		rs := &s.Workloads.ReplicaSets[i]
		if rs.UID == ref.UID {
			if above := metav1.GetControllerOfNoCopy(rs); above != nil {
				ref = above
			}
			break
		}
	}
	return types.NamespacedName{Namespace: p.Namespace, Name: ref.Name}
}

func selects(svc *corev1.Service, p *corev1.Pod) bool {
	return svc.Namespace == p.Namespace && len(svc.Spec.Selector) > 0 &&
		labels.SelectorFromSet(svc.Spec.Selector).Matches(labels.Set(p.Labels))
}

// local reports whether only nodes with a pod of a Service answer for it.
func local(svc *corev1.Service) bool {
	return svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

func (s *Inventory) Counts() v1alpha1.Counts {
	c := v1alpha1.Counts{}
	for _, l := range s.OldNodes() {
		c.Total++
		if stage := l.Stage(); stage == StageGone || stage == StageEmpty || stage == StageEnding {
			c.Moved++
		}
	}
	return c
}

// covers reports whether a PodDisruptionBudget, as namespace/name, covers a pod that has to leave.
func (s *Inventory) covers(budget string) bool {
	for i := range s.Workloads.Budgets {
		b := &s.Workloads.Budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || b.Namespace+"/"+b.Name != budget {
			continue
		}
		for _, l := range s.OldNodes() {
			if slices.ContainsFunc(l.Pods, func(p *corev1.Pod) bool {
				return p.Namespace == b.Namespace && selector.Matches(labels.Set(p.Labels))
			}) {
				return true
			}
		}
		return false
	}
	return true // it came after the pods were read
}

func (s *Inventory) onOldNodes() map[types.NamespacedName][]*corev1.Pod {
	all := map[types.NamespacedName][]*corev1.Pod{}
	for _, l := range s.OldNodes() {
		for _, p := range l.Pods {
			if owner := s.workloadOf(p); owner.Name != "" {
				all[owner] = append(all[owner], p)
			}
		}
	}
	return all
}

func (s *Inventory) deployment(key types.NamespacedName) *appsv1.Deployment {
	for i := range s.Workloads.Deployments {
		if d := &s.Workloads.Deployments[i]; client.ObjectKeyFromObject(d) == key {
			return d
		}
	}
	return nil
}
