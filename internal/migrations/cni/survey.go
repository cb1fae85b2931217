package cni

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// Survey is one look at a cluster. Nothing changes it.
type Survey struct {
	Spec Spec
	// Status is what the Migration remembers; empty before it has begun.
	Status v1alpha1.CNIStatus
	Nodes  []corev1.Node
	Pods   []corev1.Pod
	// Networks that the cluster has, and the objects of the old one that are still there.
	Networks []Network
	Old      []*unstructured.Unstructured
	// Ranges that pods have addresses of, before the migration.
	Ranges []netip.Prefix
	// Services are the ranges of Services.
	Services []netip.Prefix
	// Manifests are nil if they cannot be read, because of ManifestsProblem.
	Manifests        *Manifests
	ManifestsProblem error
	// Present are those of their objects that the cluster has.
	Present map[string]*unstructured.Unstructured
	// Bare are pods that no one recreates, as they were.
	Bare []corev1.Pod
	// ProxySets are the DaemonSets that run kube-proxy, and NodeLocal what answers for the cluster's DNS on its nodes.
	ProxySets []appsv1.DaemonSet
	NodeLocal []cluster.NodeLocal
	// Stored are the objects that were there before the migration changed them, as they were.
	Stored   []*unstructured.Unstructured
	Policies Policies
	Webhooks []Webhook
	Proxies  []cluster.Proxy
	// Frozen says that another migration keeps deployments as they are: what is to be deleted has to be exempted before.
	Frozen bool
	// Workloads are those that nodes are emptied of; none with mode Drained.
	Workloads rollout.State
	// Spares are the Deployments that get one more pod, with mode InPlace; nil, if no one has looked.
	Spares *spare.Found
	// Owners are what recreates pods, where all are to be recreated once more; nil otherwise.
	Owners *rollout.State
	// Strangers are DaemonSets that are a network, or make policies hold on one, and none of Networks, as sentences.
	Strangers []string
	// Operators are DaemonSets' owners that would not let go, such as Calico's operator.
	Operators []string
}

// Policies are the objects that say who may reach whom.
type Policies struct {
	Standard []networkingv1.NetworkPolicy
	// Own are those of the old network's own kinds.
	Own []*unstructured.Unstructured
}

// Webhook is one that refuses what it cannot be asked about, and is answered for by pods.
type Webhook struct {
	// Config it is in, as kind and name.
	Config, Name, Service string
	Namespaces            *metav1.LabelSelector
	Rules                 []admissionv1.RuleWithOperations
}

// from is the old network: what was found when the migration began, or now.
func (s *Survey) from() v1alpha1.CNIName {
	switch {
	case s.Status.From != "":
		return s.Status.From
	case s.Spec.From != "":
		return s.Spec.From
	case len(s.Networks) == 1:
		return s.Networks[0].Name
	}
	return ""
}

// oldSet is the DaemonSet of the old network; nil if it is gone.
func (s *Survey) oldSet() *Network {
	i := slices.IndexFunc(s.Networks, func(n Network) bool { return n.Name == s.from() })
	if i < 0 {
		return nil
	}
	return &s.Networks[i]
}

// leftover is what network leaves on nodes.
func leftover(network v1alpha1.CNIName) nodecleanup.Network {
	n, _ := nodecleanup.Find(string(network)) // unsupported ones have been refused
	return n
}

// target is the range of the new network.
func (s *Survey) target() []netip.Prefix {
	if s.Spec.PodCIDR.IsValid() {
		return []netip.Prefix{s.Spec.PodCIDR}
	}
	if s.Manifests == nil {
		return nil
	}
	return s.Manifests.Ranges
}

// begun reports whether the old network has begun to be removed.
func (s *Survey) begun() bool { return s.Status.Begun != nil }

// enforced reports whether NetworkPolicies hold with the new network.
func (s *Survey) enforced() bool { return s.Manifests != nil && s.Manifests.Enforces }

// enforcing reports whether policies hold with the old network. Weave's run in a container of their own.
func (s *Survey) enforcing() bool {
	if s.from() == v1alpha1.HostLocal { // what would enforce them on it is refused
		return false
	}
	alone := s.from() == v1alpha1.Flannel || s.from() == v1alpha1.Weave
	return !alone || s.oldSet() != nil &&
		slices.ContainsFunc(s.oldSet().Set.Spec.Template.Spec.Containers, enforces)
}

// stale are the pods that do not have the network that pods are to have: those made before it was there.
func (s *Survey) stale(network v1alpha1.CNIName) []corev1.Pod {
	if s.Spec.Serving {
		return s.strangers(network)
	}
	var out []corev1.Pod
	for i := range s.Pods {
		if p := &s.Pods[i]; concerned(p) && (s.Status.Network != network || !after(p, s.Status.Since)) {
			out = append(out, *p)
		}
	}
	return out
}

// after reports whether a pod was made when the network was on every node. The same second counts: the clock stood at it when that
// had been seen.
func after(p *corev1.Pod, since *metav1.Time) bool {
	return since != nil && !p.CreationTimestamp.Time.Before(since.Time)
}

// concerned are pods that have an address of the network, or wait for one.
func concerned(p *corev1.Pod) bool {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	return !over && !static && !p.Spec.HostNetwork && p.Labels[connectivity.Label] == ""
}

// bare are pods that no one recreates.
func bare(p *corev1.Pod) bool { return concerned(p) && metav1.GetControllerOfNoCopy(p) == nil }

// workloadOf is what a pod belongs to, as kind and namespace/name.
func workloadOf(p *corev1.Pod) string {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		name := ref.Name
		if hash := p.Labels["pod-template-hash"]; ref.Kind == "ReplicaSet" && hash != "" {
			return "Deployment " + p.Namespace + "/" + strings.TrimSuffix(name, "-"+hash)
		}
		return ref.Kind + " " + p.Namespace + "/" + name
	}
	return "Pod " + p.Namespace + "/" + p.Name
}

// unready are the workloads that have pods that are not ready.
func (s *Survey) unready() []string {
	var out []string
	for i := range s.Pods {
		p := &s.Pods[i]
		if name := workloadOf(p); concerned(p) && !connectivity.Ready(p) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// NodeNames are the names of all nodes.
func (s *Survey) NodeNames() []string {
	var out []string
	for i := range s.Nodes {
		out = append(out, s.Nodes[i].Name)
	}
	return out
}

// Stage is where a node stands.
type Stage string

// The stages of a node.
const (
	StageOld      Stage = "Old"
	StageNone     Stage = "None"
	StageNew      Stage = "New"
	StageSwitched Stage = "Switched"
)

// NodeStatus is where a node stands, and how many of its pods are to be recreated.
type NodeStatus struct {
	Name  string
	Stage Stage
	Pods  int
}

// Stages of all nodes.
func (s *Survey) Stages() []NodeStatus {
	if s.Spec.Serving {
		return s.stagesServing()
	}
	stale := map[string]int{}
	for _, p := range s.stale(s.Spec.To) {
		stale[p.Spec.NodeName]++
	}
	var out []NodeStatus
	for i := range s.Nodes {
		n := NodeStatus{Name: s.Nodes[i].Name, Pods: stale[s.Nodes[i].Name]}
		fresh := slices.ContainsFunc(s.Networks, func(f Network) bool { return f.Name == s.Spec.To && s.runsOn(f, n.Name) })
		old := s.oldSet()
		switch {
		case fresh && n.Pods == 0 && s.Status.Network == s.Spec.To:
			n.Stage = StageSwitched
		case fresh:
			n.Stage = StageNew
		case old != nil && s.runsOn(*old, n.Name):
			n.Stage = StageOld
		default:
			n.Stage = StageNone
		}
		out = append(out, n)
	}
	return out
}

// runsOn reports whether a network has a pod that is ready on a node.
func (s *Survey) runsOn(n Network, node string) bool {
	return slices.ContainsFunc(s.Pods, func(p corev1.Pod) bool {
		ref := metav1.GetControllerOfNoCopy(&p)
		return p.Spec.NodeName == node && ref != nil && ref.UID == n.Set.UID && connectivity.Ready(&p)
	})
}

// Counts are pods: those that have the new network, and all.
func (s *Survey) Counts() v1alpha1.Counts {
	all := 0
	for i := range s.Pods {
		if concerned(&s.Pods[i]) {
			all++
		}
	}
	return v1alpha1.Counts{Total: all, Moved: all - len(s.stale(s.Spec.To))}
}

// Left says what apply has not done yet; nothing, if it is through.
func (s *Survey) Left() string {
	if left := s.leftOfSwitch(); left != "" {
		return left
	}
	return s.leftAgain()
}

// leftOfSwitch is Left of the switch itself.
func (s *Survey) leftOfSwitch() string {
	if s.Spec.Serving {
		return s.leftServing()
	}
	if s.Status.Network != s.Spec.To || s.Status.Since == nil {
		return fmt.Sprintf("%s is not on every node", s.Spec.To)
	}
	if len(s.Old) > 0 {
		return keyOf(s.Old[0]).String() + " is still there"
	}
	if stale := s.stale(s.Spec.To); len(stale) > 0 {
		return fmt.Sprintf("%s without the new network, the first is %s/%s",
			english.Plural(len(stale), "pod", ""), stale[0].Namespace, stale[0].Name)
	}
	return ""
}

// outOf is a pod that has an address outside of some ranges, if there is one.
func outOf(pods []corev1.Pod, ranges []netip.Prefix) *corev1.Pod {
	if len(ranges) == 0 {
		return nil
	}
	for i := range pods {
		for _, a := range calico.PodAddresses(&pods[i]) {
			covered := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
			sameFamily := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == a.Is4() })
			if concerned(&pods[i]) && sameFamily && !covered {
				return &pods[i]
			}
		}
	}
	return nil
}
