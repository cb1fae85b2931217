package podmove

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// Slack covers that the clocks of nodes, and of the machine replumb runs on, differ a little.
const Slack = 2 * time.Second

// Inventory is what is found in any cluster.
type Inventory struct {
	Spec      Spec
	Workloads *rollout.State
	Nodes     []corev1.Node
	// Spares are the Deployments that get one more pod; nil, if no one has looked.
	Spares *spare.Found
	// Configs are, by namespace/name, the data of ConfigMaps that say how pods are connected, and
	// of kubeadm's.
	Configs map[string]map[string]string
}

// Occupants reads the pods and nodes as they are now, and nothing else.
func Occupants(ctx context.Context, c *cluster.Cluster, s Spec) (*Inventory, error) {
	workloads, err := rollout.Load(ctx, c)
	if err != nil {
		return nil, err
	}
	nodes, err := Nodes(ctx, c)
	nodes = slices.DeleteFunc(nodes, func(n corev1.Node) bool { return nodeipam.IsTrial(&n) })
	return &Inventory{Spec: s, Workloads: workloads, Nodes: nodes}, err
}

// Nodes of the cluster as it is now.
func Nodes(ctx context.Context, c client.Reader) ([]corev1.Node, error) {
	all := &corev1.NodeList{}
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	return all.Items, nil
}

// Load surveys what both strategies look at.
func Load(ctx context.Context, c *cluster.Cluster, s Spec) (*Inventory, error) {
	survey, err := Occupants(ctx, c, s)
	if err != nil {
		return nil, err
	}
	if survey.Spares, err = spare.Load(ctx, c, s.Spares()); err != nil {
		return nil, err
	}
	survey.Configs, err = configs(ctx, c)
	return survey, err
}

// configs reads the ConfigMaps that decide how pods are connected, as far as they may be read.
func configs(ctx context.Context, c *cluster.Cluster) (map[string]map[string]string, error) {
	all := map[string]map[string]string{}
	for _, key := range []types.NamespacedName{
		{Namespace: metav1.NamespaceSystem, Name: "calico-config"},
		{Namespace: "calico-system", Name: "cni-config"},
		{Namespace: metav1.NamespaceSystem, Name: controlplane.KubeadmConfig},
		{Namespace: metav1.NamespaceSystem, Name: "ip-masq-agent"},
		{Namespace: metav1.NamespaceSystem, Name: "azure-ip-masq-agent-config"},
	} {
		found := &corev1.ConfigMap{}
		err := c.Get(ctx, key, found)
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("configmap %s: %w", key, err)
		}
		all[key.String()] = found.Data
	}
	return all, nil
}

func (s *Inventory) Shared() *Inventory { return s }

// Leaving says which pods have an address that direction d leaves, whenever they got it until now.
func (s *Inventory) Leaving(d engine.Direction, now time.Time) rollout.Changes {
	return rollout.Changes{Addresses: s.Spec.Left(d), AddressesUntil: now, Slack: Slack}
}

// Within reports whether an address lies in one of the ranges.
func Within(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// PodsIn are the pods with an address in one of the ranges.
func (s *Inventory) PodsIn(all []netip.Prefix) []*corev1.Pod {
	var in []*corev1.Pod
	for i := range s.Workloads.Pods {
		pod := &s.Workloads.Pods[i]
		if slices.ContainsFunc(calico.PodAddresses(pod), func(a netip.Addr) bool { return Within(all, a) }) {
			in = append(in, pod)
		}
	}
	return in
}

// guards reports whether a PodDisruptionBudget covers a pod that has to be restarted.
func (s *Inventory) guards(budget string) bool {
	for i := range s.Workloads.Budgets {
		b := &s.Workloads.Budgets[i]
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || b.Namespace+"/"+b.Name != budget {
			continue
		}
		return slices.ContainsFunc(s.PodsIn(s.Spec.From), func(p *corev1.Pod) bool {
			return p.Namespace == b.Namespace && selector.Matches(labels.Set(p.Labels))
		})
	}
	return true // it came after the pods were read
}

func (s *Inventory) TunnelsIn(all []netip.Prefix) []string {
	var in []string
	for i := range s.Nodes {
		for _, a := range calico.TunnelAddresses(&s.Nodes[i]) {
			if Within(all, a) {
				in = append(in, s.Nodes[i].Name)
				break
			}
		}
	}
	return in
}

func (s *Inventory) OldPods() string {
	pods := s.PodsIn(s.Spec.From)
	if len(pods) == 0 {
		return ""
	}
	return fmt.Sprintf("%s with old addresses, the first is %s/%s",
		english.Plural(len(pods), "pod", ""), pods[0].Namespace, pods[0].Name)
}

func (s *Inventory) OldTunnels() string {
	nodes := s.TunnelsIn(s.Spec.From)
	if len(nodes) == 0 {
		return ""
	}
	return fmt.Sprintf("the tunnels of %d nodes have old addresses, the first is %s", len(nodes), nodes[0])
}

// Vacant returns nil if nothing has an address of the ranges: no pod and no tunnel.
func (s *Inventory) Vacant(ranges []netip.Prefix) error {
	if pods := s.PodsIn(ranges); len(pods) > 0 {
		return fmt.Errorf("%s with addresses of %v, the first is %s/%s",
			english.Plural(len(pods), "pod", ""), ranges, pods[0].Namespace, pods[0].Name)
	}
	if nodes := s.TunnelsIn(ranges); len(nodes) > 0 {
		return fmt.Errorf("the tunnel of node %s has an address of %v", strings.Join(nodes, ", "), ranges)
	}
	return nil
}

func (s *Inventory) Counts() v1alpha1.Counts {
	count := func(in []netip.Prefix) int { return len(slices.DeleteFunc(s.PodsIn(in), isAgent)) }
	old, arrived := count(s.Spec.From), count(s.Spec.To)
	return v1alpha1.Counts{Total: old + arrived, Moved: arrived}
}

// isAgent reports whether agents call a pod. Such pods are not counted.
func isAgent(pod *corev1.Pod) bool {
	return pod.Namespace == v1alpha1.SystemNamespace && pod.Labels[v1alpha1.LabelRole] == v1alpha1.RoleProbe
}

// Holds names what still has an address of the old ranges.
func Holds(s Strategy, now time.Time) []string {
	survey := s.Shared()
	var all []string
	for _, r := range survey.Workloads.Left(s.Leaving(engine.Forward, now)) {
		all = append(all, fmt.Sprintf("pod %s on node %s (%s)", r.Pod, r.Node, r.Reason))
	}
	for _, node := range survey.TunnelsIn(survey.Spec.From) {
		all = append(all, "the tunnel of node "+node)
	}
	return all
}
