package switchover

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// Inventory is what every strategy finds in a cluster. It is not changed once it is loaded.
type Inventory struct {
	Spec Spec
	// Status is status.cni of the Migration; empty before it has begun.
	Status v1alpha1.CNIStatus
	Nodes  []corev1.Node
	Pods   []corev1.Pod
	// Deployments of the cluster, and its DaemonSets.
	Deployments []appsv1.Deployment
	DaemonSets  []appsv1.DaemonSet
	// Networks that the cluster has, and the objects of the old one that are still there.
	Networks []manifests.Network
	Old      []*unstructured.Unstructured
	// Ranges that pods have addresses of, before the migration.
	Ranges []netip.Prefix
	// Services are the ranges of Services.
	Services []netip.Prefix
	// Manifests are nil if they cannot be read, because of ManifestsProblem.
	Manifests        *manifests.ManifestSet
	ManifestsProblem error
	// Present are those of their objects that the cluster has.
	Present map[string]*unstructured.Unstructured
	// Bare are pods that no one recreates, as they were.
	Bare []corev1.Pod
	// ProxySets are the DaemonSets that run kube-proxy, and NodeLocal what answers for the
	// cluster's DNS on its nodes.
	ProxySets []appsv1.DaemonSet
	NodeLocal []inventory.NodeLocal
	// Stored are the objects that were there before the migration changed them, as they were.
	Stored   []*unstructured.Unstructured
	Policies Policies
	Webhooks []Webhook
	Proxies  []inventory.Proxy
	// Frozen says that another migration keeps deployments as they are.
	Frozen bool
	// Owners are what recreates pods, where all are to be recreated once more; nil otherwise.
	Owners *rollout.State
	// Unknown are DaemonSets that are a network, or enforce policies on one, and none of Networks,
	// as sentences.
	Unknown []string
	// Operators are DaemonSets' owners that would not let go, such as Calico's operator.
	Operators []string
}

// Policies are the objects that say who may reach whom.
type Policies struct {
	Standard []networkingv1.NetworkPolicy
	// Own are those of the old network's own kinds.
	Own []*unstructured.Unstructured
}

func (s *Inventory) Shared() *Inventory { return s }

// From is the old network: what was found when the migration began, or now.
func (s *Inventory) From() v1alpha1.CNIName {
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

// OldSet is the DaemonSet of the old network; nil if it is gone.
func (s *Inventory) OldSet() *manifests.Network {
	i := slices.IndexFunc(s.Networks, func(n manifests.Network) bool { return n.Name == s.From() })
	if i < 0 {
		return nil
	}
	return &s.Networks[i]
}

func (s *Inventory) Target() []netip.Prefix {
	if s.Spec.PodCIDR.IsValid() {
		return []netip.Prefix{s.Spec.PodCIDR}
	}
	if s.Manifests == nil {
		return nil
	}
	return s.Manifests.Ranges
}

func (s *Inventory) Begun() bool { return s.Status.Begun != nil }

func (s *Inventory) Enforced() bool { return s.Manifests != nil && s.Manifests.Enforces }

// Enforcing reports whether policies hold with the old network. Weave's run in a container of their
// own.
func (s *Inventory) Enforcing() bool {
	if s.From() == v1alpha1.HostLocal { // what would enforce them on it is refused
		return false
	}
	alone := s.From() == v1alpha1.Flannel || s.From() == v1alpha1.Weave
	return !alone || s.OldSet() != nil &&
		slices.ContainsFunc(s.OldSet().Set.Spec.Template.Spec.Containers, manifests.Enforces)
}

// MadeSince reports whether a pod was made when the network was on every node. The same second
// counts: the clock stood at it when that had been seen.
func MadeSince(p *corev1.Pod, since *metav1.Time) bool {
	return since != nil && !p.CreationTimestamp.Time.Before(since.Time)
}

// Concerned are pods that have an address of the network, or wait for one.
func Concerned(p *corev1.Pod) bool {
	over := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	_, static := p.Annotations[corev1.MirrorPodAnnotationKey]
	return !over && !static && !p.Spec.HostNetwork && p.Labels[connectivity.Label] == ""
}

// Bare are pods that no one recreates.
func Bare(p *corev1.Pod) bool { return Concerned(p) && metav1.GetControllerOfNoCopy(p) == nil }

// WorkloadOf is what a pod belongs to, as kind and namespace/name.
func WorkloadOf(p *corev1.Pod) string {
	if ref := metav1.GetControllerOfNoCopy(p); ref != nil {
		name := ref.Name
		if hash := p.Labels["pod-template-hash"]; ref.Kind == "ReplicaSet" && hash != "" {
			return "Deployment " + p.Namespace + "/" + strings.TrimSuffix(name, "-"+hash)
		}
		return ref.Kind + " " + p.Namespace + "/" + name
	}
	return "Pod " + p.Namespace + "/" + p.Name
}

func (s *Inventory) unready() []string {
	var out []string
	for i := range s.Pods {
		p := &s.Pods[i]
		if name := WorkloadOf(p); Concerned(p) && !connectivity.Ready(p) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// AwaitReady says which pod is not ready yet; nil, if all are that were when the migration began.
func (s *Inventory) AwaitReady(of func(*corev1.Pod) bool) error {
	for i := range s.Pods {
		p := &s.Pods[i]
		if !Concerned(p) || !of(p) || slices.Contains(s.Status.Unready, WorkloadOf(p)) || connectivity.Ready(p) {
			continue
		}
		return engine.NotYet("pod %s/%s is not ready: %s", p.Namespace, p.Name, connectivity.Why(p))
	}
	return nil
}

func (s *Inventory) NodeNames() []string {
	var out []string
	for i := range s.Nodes {
		out = append(out, s.Nodes[i].Name)
	}
	return out
}

func (s *Inventory) NewSets() []client.ObjectKey {
	if s.Manifests == nil {
		return nil
	}
	return SetsOf(s.Manifests.Objects)
}

// outside is a pod that has an address outside of some ranges, if there is one.
func outside(pods []corev1.Pod, ranges []netip.Prefix) *corev1.Pod {
	if len(ranges) == 0 {
		return nil
	}
	for i := range pods {
		for _, a := range calico.PodAddresses(&pods[i]) {
			sameFamily := slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Addr().Is4() == a.Is4() })
			if Concerned(&pods[i]) && sameFamily && !Within(ranges, a) {
				return &pods[i]
			}
		}
	}
	return nil
}

// Within reports whether an address is in one of some ranges.
func Within(ranges []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// PodsTime is how long all pods may take to end and come again.
const PodsTime = 30 * time.Minute

// AwaitPods waits until every pod is ready that was, with an address of the ranges.
func AwaitPods(deps Deps, spec Spec, ranges []netip.Prefix) engine.Step {
	return &engine.Wait{
		Name: "settled", About: "Wait until every pod is ready that was", Limit: PodsTime,
		For: func(ctx context.Context) error {
			now, err := deps.Occupants(ctx, spec)
			if err != nil {
				return err
			}
			for i := range now.Nodes {
				if !inventory.NodeReady(&now.Nodes[i]) {
					return engine.NotYet("node %s is not ready", now.Nodes[i].Name)
				}
			}
			if p := outside(now.Pods, ranges); p != nil {
				return engine.NotYet("pod %s/%s has the address %s, which is not in %v", p.Namespace, p.Name, p.Status.PodIP, ranges)
			}
			return now.AwaitReady(func(*corev1.Pod) bool { return true })
		},
	}
}
