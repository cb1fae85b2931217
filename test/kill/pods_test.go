package kill

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

// Both ends of the move of pods, and the pool that is there before.
const (
	oldPods, newPods = "10.244.0.0/16", "10.245.0.0/16"
	oldPool          = "default-ipv4-ippool"
	podNodes         = 2
	podsAndTunnels   = 7 + podNodes
)

// podCluster is an API server with the real scheduler and controllers, nodes that are played, and Calico's books.
type podCluster struct {
	*apitest.Server
	target
	fleet *fakekubelet.Fleet
	dir   string
}

func startPods(t *testing.T) *podCluster {
	t.Helper()
	s, err := apitest.Run("10.96.0.0/16", apitest.Calico(), apitest.Controllers())
	must(t, err)
	t.Cleanup(func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	must(t, s.InstallCRD(t.Context()))
	c := &podCluster{Server: s, target: target(s.Kubeconfig), dir: t.TempDir()}
	must(t, s.Create(t.Context(), info()))
	fleet := &fakekubelet.Fleet{Client: s, Addresses: &fakekubelet.Blocks{Client: s}, Phase: func(pod *corev1.Pod) corev1.PodPhase {
		if pod.Labels["replumb.dev/canary"] == "call" { // it has called, and all answered
			return corev1.PodSucceeded
		}
		return corev1.PodRunning
	}}
	c.fleet = fleet
	for i := range podNodes {
		must(t, fleet.Node(t.Context(), fmt.Sprintf("node%d", i+1), netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})))
	}
	ctx, cancel := context.WithCancel(context.Background())
	played := make(chan struct{})
	go func() {
		defer close(played)
		fleet.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-played
	})
	c.Namespace(t, shop)
	must(t, s.Create(t.Context(), service(metav1.NamespaceSystem, "kube-dns", "10.96.0.10")))
	return c
}

func info() client.Object {
	o := calico.Empty("ClusterInformation", "default")
	o.Object["spec"] = map[string]any{"datastoreReady": true}
	return o
}

func pool(name, cidr string) client.Object {
	o := calico.Empty("IPPool", name)
	o.Object["spec"] = map[string]any{
		"cidr": cidr, "blockSize": int64(26), "vxlanMode": "Always", "ipipMode": "Never", "natOutgoing": true, "nodeSelector": "all()",
	}
	return o
}

// clear removes what migrations and workloads left.
func (c *podCluster) clear(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, o := range []client.Object{
		&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}},
	} {
		must(t, client.IgnoreNotFound(c.Delete(ctx, o)))
	}
	for _, ns := range []string{shop, metav1.NamespaceSystem, v1alpha1.SystemNamespace} {
		for _, o := range []client.Object{
			&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &corev1.Pod{}, &policyv1.PodDisruptionBudget{},
		} {
			must(t, c.DeleteAllOf(ctx, o, client.InNamespace(ns), client.PropagationPolicy(metav1.DeletePropagationForeground)))
		}
	}
	c.eventually(t, func() error {
		for _, list := range []client.ObjectList{&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &corev1.PodList{}} {
			if err := c.List(ctx, list); err != nil {
				return err
			}
			if n := meta.LenList(list); n > 0 {
				return fmt.Errorf("%d of %T are still there", n, list)
			}
		}
		return nil
	})
	// Last: nothing waits here until a namespace is empty, and what is left in one that is gone can never be finalized.
	system := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}}
	must(t, client.IgnoreNotFound(c.Delete(ctx, system)))
	c.eventually(t, func() error { return gone(ctx, c, system) })
}

// renew brings the cluster to how it is before a migration: everything in the old pool.
func (c *podCluster) renew(t *testing.T, _ string) {
	t.Helper()
	ctx := t.Context()
	c.clear(t)
	must(t, client.IgnoreAlreadyExists(c.Create(ctx, pool(oldPool, oldPods))))
	old := calico.Empty("IPPool", oldPool)
	must(t, c.Get(ctx, client.ObjectKeyFromObject(old), old))
	old.SetAnnotations(nil)
	old.Object["spec"].(map[string]any)["disabled"] = false
	must(t, c.Update(ctx, old))
	pools, err := calico.LoadPools(ctx, c)
	must(t, err)
	for i := range pools {
		if pools[i].Name != oldPool {
			must(t, c.Delete(ctx, pools[i].Object))
		}
	}
	c.populate(t)
	c.eventually(t, func() error { return c.settled(t, oldPods) })
}

// populate makes a workload of every kind that restarts by itself, under budgets, and a cluster DNS with a single pod.
func (c *podCluster) populate(t *testing.T) {
	t.Helper()
	labels := func(name string) map[string]string { return map[string]string{"app": name} }
	template := func(name string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: labels(name)},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "c", Image: "c"}}, TerminationGracePeriodSeconds: ptr.To[int64](1),
			},
		}
	}
	of := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name}
	}
	selector := func(name string) *metav1.LabelSelector { return &metav1.LabelSelector{MatchLabels: labels(name)} }
	for _, o := range []client.Object{
		&appsv1.Deployment{ObjectMeta: of(metav1.NamespaceSystem, "coredns"), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](1), Selector: selector("kube-dns"), Template: template("kube-dns"),
		}},
		&appsv1.Deployment{ObjectMeta: of(shop, "web"), Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](2), Selector: selector("web"), Template: template("web"),
		}},
		&appsv1.StatefulSet{ObjectMeta: of(shop, "db"), Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](2), Selector: selector("db"), Template: template("db"),
		}},
		&appsv1.DaemonSet{ObjectMeta: of(shop, "logs"), Spec: appsv1.DaemonSetSpec{Selector: selector("logs"), Template: template("logs")}},
		&policyv1.PodDisruptionBudget{ObjectMeta: of(shop, "web"), Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable: ptr.To(intstr.FromInt32(1)), Selector: selector("web"),
		}},
	} {
		must(t, c.Create(t.Context(), o))
	}
}

// settled returns an error until all pods and tunnels are there and have addresses of one range.
func (c *podCluster) settled(t *testing.T, cidr string) error {
	t.Helper()
	all := c.inhabitants(t)
	in := func(line string) bool { return strings.HasSuffix(line, " in "+cidr) }
	if len(all) != podsAndTunnels || slices.ContainsFunc(all, func(line string) bool { return !in(line) }) {
		return fmt.Errorf("%d of %d pods and tunnels are there: %q", len(all), podsAndTunnels, all)
	}
	return nil
}

// inhabitants are pods by owner and tunnels by node, with the range each is in.
func (c *podCluster) inhabitants(t *testing.T) []string {
	t.Helper()
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	must(t, c.List(t.Context(), pods))
	must(t, c.List(t.Context(), nodes))
	var all []string
	for i := range pods.Items {
		p := &pods.Items[i]
		owner := p.Name
		if ref := metav1.GetControllerOf(p); ref != nil {
			owner = ref.Kind + " " + p.Labels["app"]
		}
		all = append(all, "pod of "+owner+" in "+rangeOf(calico.PodAddresses(p)))
	}
	for i := range nodes.Items {
		for _, a := range calico.TunnelAddresses(&nodes.Items[i]) {
			all = append(all, "tunnel of "+nodes.Items[i].Name+" in "+rangeOf([]netip.Addr{a}))
		}
	}
	slices.Sort(all)
	return all
}

func rangeOf(all []netip.Addr) string {
	for _, a := range all {
		for _, text := range []string{oldPods, newPods} {
			if netip.MustParsePrefix(text).Contains(a) {
				return text
			}
		}
	}
	return "none"
}

// look takes everything that replumb could have written, or lost. Which node has which block is left to chance; that
// they fit together is not.
func (c *podCluster) look(t *testing.T) picture {
	t.Helper()
	p := picture{"inhabitants": strings.Join(c.inhabitants(t), "\n")}
	state, err := calico.Load(t.Context(), c)
	must(t, err)
	lost := map[string]int{}
	for i := range state.Blocks {
		lost[rangeOf([]netip.Addr{state.Blocks[i].CIDR.Addr()})]++
	}
	for i := range state.Pools {
		p["IPPool "+state.Pools[i].Name] = volatile.ReplaceAllString(plain(t, state.Pools[i].Object), "<volatile>")
	}
	p["ranges with blocks"] = fmt.Sprint(slices.Sorted(maps.Keys(lost)))
	for _, o := range listed(t, c,
		&appsv1.DeploymentList{}, &appsv1.StatefulSetList{}, &appsv1.DaemonSetList{}, &corev1.ConfigMapList{}, &corev1.NamespaceList{},
		&coordinationv1.LeaseList{}, &v1alpha1.MigrationList{}, &networkingv1.NetworkPolicyList{},
	) {
		p.add(t, o)
	}
	return p
}

// add takes what is of an object, without what differs from run to run.
func (p picture) add(t *testing.T, o client.Object) {
	t.Helper()
	ns := o.GetNamespace()
	if ns == metav1.NamespaceDefault || ns == metav1.NamespaceSystem && o.GetName() != "coredns" && o.GetName() != lease.Name {
		return // the API server's own
	}
	if tells(o) {
		return // what happened differs
	}
	kind := strings.TrimPrefix(fmt.Sprintf("%T", o), "*")
	name := volatile.ReplaceAllString(kind+" "+ns+"/"+o.GetName(), "<volatile>")
	p[name] = volatile.ReplaceAllString(plain(t, o), "<volatile>")
	p[name] = counted.ReplaceAllString(p[name], "")
	if strings.HasPrefix(kind, "v1.Deployment") || strings.HasPrefix(kind, "v1.StatefulSet") ||
		strings.HasPrefix(kind, "v1.DaemonSet") {
		p[name], _, _ = strings.Cut(p[name], "\nstatus:") // which names revisions, that depend on the time of a restart
	}
}

// counted is how many pods there were when a run ended: those that were just coming or going are among them.
var counted = regexp.MustCompile(`(?m)^  counts:\n(    .*\n)*`)

func (c *podCluster) note(t *testing.T, _ string) string {
	t.Helper()
	return noted(t, c.dir, `
  podCIDR:
    from: [%s]
    to: [%s]
  image: replumb
  proof: {agents: Disabled}
  batch: {size: 2, settle: 0s}
`, oldPods, newPods)
}

// movesOfPods are killed where pods restart, and where addresses are given back.
func movesOfPods(on ...world) kind {
	return kind{
		worlds: on, variants: []variant{whole("")},
		controls: map[string]string{"apply": "restart/", "rollback": "restart/", "finish": "release/"},
		stays: func(d string) bool { // restarts leave their mark
			return d == "left over: v1alpha1.Migration /move" || strings.HasPrefix(d, "differs: v1.")
		},
	}
}
