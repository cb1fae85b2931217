package rights

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/internal/testing/watching"
)

const ciliumMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: behind}
spec:
  image: replumb
  podCIDR: {to: [10.245.0.0/16], roll: {barePods: Evict}}
  batch: {settle: 0s}
`

// poolMove moves the pods that ciliumMove has moved, of a CiliumPodIPPool.
const poolMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: pools}
spec:
  image: replumb
  podCIDR: {to: [10.246.0.0/16], roll: {barePods: Evict}}
  batch: {settle: 0s}
`

// poolManifests have Cilium give nodes ranges of a pool, of which there can be several.
const poolManifests = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumpodippools.cilium.io}
spec:
  group: cilium.io
  scope: Cluster
  names: {plural: ciliumpodippools, singular: ciliumpodippool, kind: CiliumPodIPPool, listKind: CiliumPodIPPoolList}
  versions:
  - name: v2alpha1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`

// ciliumManifests are Cilium as its chart installs it, as far as replumb looks at it.
const ciliumManifests = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ciliumnodes.cilium.io}
spec:
  group: cilium.io
  scope: Cluster
  names: {plural: ciliumnodes, singular: ciliumnode, kind: CiliumNode, listKind: CiliumNodeList}
  versions:
  - name: v2
    served: true
    storage: true
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cilium-config, namespace: kube-system}
data: {ipam: cluster-pool, cluster-pool-ipv4-cidr: 10.244.0.0/16, cluster-pool-ipv4-mask-size: "24", routing-mode: tunnel}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: cilium, namespace: kube-system, labels: {k8s-app: cilium}}
spec:
  selector: {matchLabels: {k8s-app: cilium}}
  template:
    metadata: {labels: {k8s-app: cilium}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: cilium-agent, image: quay.io/cilium/cilium:v1.20.2}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: cilium-operator, namespace: kube-system}
spec:
  selector: {matchLabels: {io.cilium/app: operator}}
  template:
    metadata: {labels: {io.cilium/app: operator}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: cilium-operator, image: quay.io/cilium/operator-generic:v1.20.2}]
`

// TestCilium: the roles are enough for whole migrations of pods whose nodes have their ranges of Cilium's operator, of one pool and of several,
// and all of them is needed.
// That all is needed of what every migration of pods takes, TestPods shows.
func TestCilium(t *testing.T) {
	s := empty(t, shared)
	c := &ciliumWorld{
		scene: s, reserved: map[string][]string{}, agents: map[types.UID]bool{}, ranges: map[string]netip.Prefix{},
		last: map[netip.Prefix]netip.Addr{},
	}
	s.play(c, message)
	s.manifests(ciliumManifests)
	s.eventually(func() error { _, err := ciliumipam.List(t.Context(), s, ""); return err })
	for i, name := range []string{"node1", "node2"} {
		s.node(name, fmt.Sprintf("192.0.2.%d", i+1))
		s.must(c.join(t.Context(), name, fmt.Sprintf("10.244.%d.0/24", i)))
	}
	c.run()
	s.start("pods", ciliumMove)
	s.workloads("web")
	s.expect(3, viewer, []string{"check", "-f", s.file, "-o", "json"},
		"missing permission: get,create,patch ciliumnodes.cilium.io (role replumb-pods-on-cilium-operate)")
	s.moves("behind")
	s.movesForGood("behind")
	c.ofPools("10.245.0.0/16")
	s.must(os.WriteFile(s.file, []byte(poolMove), 0o600))
	s.moves("pools")
	s.movesForGood("pools")
	s.audited(noderanges.PoolRoles(), map[string]string{"create ciliumnodes.cilium.io": "a CiliumNode that somebody else has deleted"})
}

// ciliumWorld plays Cilium's operator and agents.
type ciliumWorld struct {
	*scene
	mu sync.Mutex
	// operator is the pod that leads, with the pool that it has read, and what it has reserved for nodes.
	operator types.UID
	pool     netip.Prefix
	reserved map[string][]string
	// of is the CiliumPodIPPool of which nodes have their ranges; empty with cluster-pool.
	of string
	// agents are the pods that have started, and taken the ranges of their nodes.
	agents map[types.UID]bool
	ranges map[string]netip.Prefix
	last   map[netip.Prefix]netip.Addr
}

var _ fakekubelet.Addresses = (*ciliumWorld)(nil)

// Take gives out addresses of the range that the agent of the node has taken, one after another.
func (c *ciliumWorld) Take(_ context.Context, _ []calico.Pool, u fakekubelet.User) (netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	in, known := c.ranges[u.Node]
	if !known {
		return netip.Addr{}, fmt.Errorf("the agent of node %s has no range", u.Node)
	}
	if !c.last[in].IsValid() {
		c.last[in] = in.Addr().Next()
	}
	c.last[in] = c.last[in].Next()
	return c.last[in], nil
}

// ByNode implements fakekubelet.ByNode.
func (*ciliumWorld) ByNode() {}

func (*ciliumWorld) Give(context.Context, string) error { return nil }

func (c *ciliumWorld) join(ctx context.Context, name, cidr string) error {
	u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"addresses": []any{map[string]any{"type": "CiliumInternalIP", "ip": netip.MustParsePrefix(cidr).Addr().Next().String()}},
		"ipam":      map[string]any{"podCIDRs": []any{cidr}},
	}}}
	u.SetGroupVersionKind(ciliumipam.GroupVersionKind())
	u.SetName(name)
	return c.Create(ctx, u)
}

// ofPools has nodes keep their ranges, and have them of a CiliumPodIPPool from now on.
func (c *ciliumWorld) ofPools(cidr string) {
	c.Helper()
	ctx := c.Context()
	c.manifests(poolManifests)
	pool := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
		"ipv4": map[string]any{"cidrs": []any{cidr}, "maskSize": int64(24)},
	}}}
	pool.SetGroupVersionKind(ciliumipam.PoolKind())
	pool.SetName("default")
	c.eventually(func() error { return c.Create(ctx, pool) }) // the server has yet to serve what was defined
	c.mu.Lock()
	defer c.mu.Unlock()
	c.of = pool.GetName()
	nodes, err := ciliumipam.List(ctx, c, "")
	c.must(err)
	for _, n := range nodes {
		n.Pool = c.of
		c.must(n.Give(ctx, c, n.PodCIDRs))
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "cilium-config"}}
	c.must(c.Patch(ctx, config, client.RawPatch(types.MergePatchType, []byte(`{"data":{"ipam":"multi-pool"}}`))))
}

// run plays until the test ends.
func (c *ciliumWorld) run() {
	c.Helper()
	ctx, stop := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() {
		watching.Whenever(ctx, c, func(ctx context.Context) time.Duration {
			c.look(ctx)
			return time.Second / 5
		}, &corev1.NodeList{})
	})
	c.Cleanup(func() { stop(); playing.Wait() })
}

// look is one of the operator and of all agents. The next one makes up for failures.
func (c *ciliumWorld) look(ctx context.Context) {
	pods := &corev1.PodList{}
	if c.List(ctx, pods, client.InNamespace(metav1.NamespaceSystem)) != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	all, err := ciliumipam.List(ctx, c, c.of)
	if err != nil {
		return
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		n := all[p.Spec.NodeName]
		switch {
		case !p.DeletionTimestamp.IsZero() || p.Status.Phase != corev1.PodRunning:
		case p.Labels["io.cilium/app"] == "operator" && p.UID != c.operator:
			c.restarted(ctx, p)
		case p.Labels["k8s-app"] == "cilium" && n != nil:
			c.agent(ctx, p, n)
		}
	}
	for name, n := range all {
		if c.of == "" && c.pool.IsValid() && !n.Ignored {
			c.reserve(ctx, name, n)
		}
	}
}

func (c *ciliumWorld) restarted(ctx context.Context, p *corev1.Pod) {
	config := &corev1.ConfigMap{}
	if c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: "cilium-config"}, config) != nil {
		return
	}
	if pool, err := netip.ParsePrefix(config.Data[ciliumipam.PoolKey]); err == nil {
		c.operator, c.pool, c.reserved = p.UID, pool, map[string][]string{}
	}
}

// agent takes the range of its node when it has started, and an address in it, and copies annotations at any time.
func (c *ciliumWorld) agent(ctx context.Context, p *corev1.Pod, n *ciliumipam.CiliumNode) {
	own := nodeipam.Range(n.Own())
	if !c.agents[p.UID] && own.IsValid() {
		if !n.Lives(own) && n.Lead(ctx, c, n.PodCIDRs, ciliumipam.Router(own), n.Held...) != nil {
			return
		}
		c.agents[p.UID], c.ranges[n.Name] = true, own
		return
	}
	node := &corev1.Node{}
	if c.Get(ctx, client.ObjectKey{Name: n.Name}, node) != nil || (node.Annotations[ciliumipam.IgnoreAnnotation] == "true") == n.Ignored {
		return
	}
	u := n.Object().DeepCopyObject().(*unstructured.Unstructured)
	u.SetAnnotations(node.Annotations)
	_ = c.Update(ctx, u)
}

// reserve is reuseIPNets of operator/pkg/ipam/allocator/podcidr in github.com/cilium/cilium.
func (c *ciliumWorld) reserve(ctx context.Context, name string, n *ciliumipam.CiliumNode) {
	says := ""
	switch has := c.reserved[name]; {
	case has != nil && !slices.Equal(has, n.PodCIDRs):
		_ = n.Give(ctx, c, has)
		return
	case has == nil && !nodeipam.Within(c.pool, nodeipam.Range(n.PodCIDRs)):
		says = "allocator not configured for the requested CIDR"
	default:
		c.reserved[name] = n.PodCIDRs
	}
	if n.Problem == says {
		return
	}
	u := n.Object().DeepCopyObject().(*unstructured.Unstructured)
	_ = unstructured.SetNestedField(u.Object, says, "status", "ipam", "operator-status", "error")
	if err := c.Status().Update(ctx, u); err != nil && !apierrors.IsConflict(err) {
		c.Logf("the status of ciliumnode %s: %v", name, err)
	}
}
