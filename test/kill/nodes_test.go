package kill

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// Both ends of the move of nodes.
const (
	oldNetwork, newNetwork = "192.0.2.0/24", "198.51.100.0/24"
	ofWorkloads            = 5
)

// nodeCluster is one whose nodes come and go.
type nodeCluster struct{ *podCluster }

// renew brings the cluster to how it is before a migration: everything on two old nodes, and two new ones empty.
func (c nodeCluster) renew(t *testing.T, _ string) {
	t.Helper()
	ctx := t.Context()
	c.clear(t)
	must(t, client.IgnoreNotFound(c.Delete(ctx, c.edge())))
	must(t, c.DeleteAllOf(ctx, &corev1.Node{}))
	c.eventually(t, func() error { return c.noneOf(t, &corev1.NodeList{}) })
	c.eventually(t, func() error { return c.noneOf(t, &corev1.PodList{}) }) // those of DaemonSets were on their nodes
	must(t, client.IgnoreAlreadyExists(c.Create(ctx, pool(oldPool, oldPods))))
	for i := range 2 {
		must(t, c.fleet.Node(ctx, fmt.Sprintf("old%d", i+1), netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})))
	}
	c.populate(t)
	must(t, c.Create(ctx, c.edge()))
	c.eventually(t, func() error { return c.inPlace(t, "old") })
	for i := range 2 {
		must(t, c.fleet.Node(ctx, fmt.Sprintf("new%d", i+1), netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)})))
	}
	c.eventually(t, func() error { return c.inPlace(t, "old") })
}

func (c nodeCluster) noneOf(t *testing.T, list client.ObjectList) error {
	t.Helper()
	if err := c.List(t.Context(), list); err != nil {
		return err
	}
	if n := meta.LenList(list); n > 0 {
		return fmt.Errorf("%d of %T are still there", n, list)
	}
	return nil
}

// edge is a Service that only nodes with a pod of its own answer for from outside.
func (nodeCluster) edge() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: "edge"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, Selector: map[string]string{"app": "web"}, LoadBalancerClass: ptr.To("example.com/none"),
			ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}},
			ClusterIP: "10.96.0.80", HealthCheckNodePort: 30081,
		},
	}
}

// inPlace returns an error until every pod is ready, and those of workloads are on nodes of that side.
func (c nodeCluster) inPlace(t *testing.T, side string) error {
	t.Helper()
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	must(t, errors.Join(c.List(t.Context(), pods), c.List(t.Context(), nodes)))
	of := 0
	for i := range pods.Items {
		p := &pods.Items[i]
		daemon := metav1.GetControllerOf(p) != nil && metav1.GetControllerOf(p).Kind == "DaemonSet"
		switch {
		case !connectivity.Ready(p) || !p.DeletionTimestamp.IsZero():
			return fmt.Errorf("pod %s is not ready, or ends", p.Name)
		case !daemon && !strings.HasPrefix(p.Spec.NodeName, side):
			return fmt.Errorf("pod %s is on %s", p.Name, p.Spec.NodeName)
		case !daemon:
			of++
		}
	}
	if of != ofWorkloads || len(pods.Items)-of != len(nodes.Items) {
		return fmt.Errorf("%d pods of workloads and %d others on %d nodes", of, len(pods.Items)-of, len(nodes.Items))
	}
	return nil
}

// look takes everything that replumb could have written, or lost. Which pod is on which node of a side is left to chance.
func (c nodeCluster) look(t *testing.T) picture {
	t.Helper()
	p := picture{}
	pods, nodes := &corev1.PodList{}, &corev1.NodeList{}
	must(t, errors.Join(c.List(t.Context(), pods), c.List(t.Context(), nodes)))
	var all []string
	for i := range pods.Items {
		o := &pods.Items[i]
		owner := o.Name
		if ref := metav1.GetControllerOf(o); ref != nil {
			owner = ref.Kind + " " + o.Labels["app"]
		}
		all = append(all, "pod of "+owner+" on "+strings.TrimRight(o.Spec.NodeName, "12"))
	}
	slices.Sort(all)
	p["pods"] = strings.Join(all, "\n")
	for i := range nodes.Items {
		n := &nodes.Items[i]
		var taints []string
		for _, taint := range n.Spec.Taints {
			taints = append(taints, taint.ToString())
		}
		p["Node "+n.Name] = fmt.Sprint(taints, n.Spec.Unschedulable, len(n.Annotations))
	}
	for _, o := range listed(t, c,
		&corev1.ServiceList{}, &corev1.ConfigMapList{}, &corev1.NamespaceList{}, &coordinationv1.LeaseList{}, &v1alpha1.MigrationList{},
		&networkingv1.NetworkPolicyList{},
	) {
		p.add(t, o)
	}
	return p
}

// note writes the Migration. Machines end as soon as they are told to.
func (c nodeCluster) note(t *testing.T, when string) string {
	t.Helper()
	return noted(t, c.dir, `
  image: replumb
  proof: {agents: Disabled}
  nodes:
    old: {cidrs: [%s]}
    new: {cidrs: [%s]}
    ingress: {settle: 0s}
    terminate: {when: %s, action: {exec: {command: ["true"]}}}
`, oldNetwork, newNetwork, when)
}

// movesOfNodes are killed where nodes are emptied, and where machines end: at finish, or each as soon as it is empty.
func movesOfNodes(on ...world) kind {
	return kind{
		worlds: on, variants: []variant{whole(string(v1alpha1.TerminateAtFinish)), {name: string(v1alpha1.TerminateEach), commands: []string{"apply"}}},
		controls: map[string]string{"apply": "drain/", "rollback": "drain/", "finish": "terminate/"},
		stays: func(d string) bool { // new nodes stay closed
			return d == "left over: v1alpha1.Migration /move" || strings.Contains(d, "Node new")
		},
	}
}
