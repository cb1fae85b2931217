package bridge

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/network/cidr"
)

// endpointsPerSlice is the API server's limit (maxEndpoints in k8s.io/kubernetes
// pkg/apis/discovery/validation).
const endpointsPerSlice = 1000

// SentinelWatcher tells which nodes do not know a sentinel yet.
type SentinelWatcher interface {
	// Behind names those of the nodes that are not known to have programmed the sentinel.
	Behind(ctx context.Context, sentinel *corev1.Service, nodes []string) []string
}

// NodeProbe asks a node's kube-proxy for a Service's health, at its health-check port.
type NodeProbe interface {
	Ask(ctx context.Context, node string, port int32) (body []byte, err error)
}

// HealthChecks is a Witness that asks the health-check port of every node.
type HealthChecks struct{ Probe NodeProbe }

// Either asks the second Witness about nodes unknown to the first.
type Either struct{ First, Second SentinelWatcher }

var (
	_ SentinelWatcher = HealthChecks{}
	_ SentinelWatcher = Either{}
)

// Barrier proves that the kube-proxy of every node has programmed all bridges made before it.
//
// It makes a sentinel Service and then its EndpointSlices. kube-proxy takes up each kind in watch
// order, applies both in one sync, and reports to its health-check server only after the kernel
// took the rules (the end of syncProxyRules in k8s.io/kubernetes pkg/proxy/iptables/proxier.go and
// pkg/proxy/nftables/proxier.go; a failed write returns before). So a node that reports an endpoint
// of the sentinel has programmed all that was there before. See docs/design/barrier.md.
type Barrier struct {
	Client  client.Client
	Witness SentinelWatcher
	// Pool is where the sentinel gets its address from. Nil leaves that to the API server.
	Pool      *cidr.Allocator
	Migration string
	Name      string
	Limit     time.Duration
	// Forget are former endpoints of Services. Agents pass once connection tracking has left them.
	Forget []netip.Addr
	// About is the title. Default: that nodes know the bridges of Name.
	About string
	// Connect, if set, has agents prove it by connections, where health checks prove nothing.
	Connect *Connect
	// Also is a family with its own sentinel: kube-proxy programs each family by itself.
	Also corev1.IPFamily

	sentinels []*sentinel
}

// Connect is what agents connect to from every node. Cilium's health checks tell what its tables
// are to be, and not what the kernel has (pkg/loadbalancer/healthserver in
// github.com/cilium/cilium).
type Connect struct {
	// Selector is of pods that answer at a port named http. The sentinel leads to them.
	Selector map[string]string
	// Pairs are addresses of Services that have to answer at both.
	Pairs func() []AddressPair
}

// AddressPair is where a Service is, and where it has to answer as well if it answers there.
type AddressPair struct{ At, Beside netip.AddrPort }

func (p AddressPair) String() string { return p.At.String() + "=" + p.Beside.String() }

// ParsePairs reads AnnotationConnect, and passes over what is not understood.
func ParsePairs(text string) (all []AddressPair) {
	for each := range strings.SplitSeq(text, ",") {
		at, beside, _ := strings.Cut(each, "=")
		a, err := netip.ParseAddrPort(at)
		b, errs := netip.ParseAddrPort(beside)
		if err == nil && errs == nil {
			all = append(all, AddressPair{a, b})
		}
	}
	return all
}

type sentinel struct {
	service *corev1.Service
	waiting []string
}

var (
	_ engine.Timed     = (*Barrier)(nil)
	_ engine.Waiter    = (*Barrier)(nil)
	_ engine.Abandoner = (*Barrier)(nil)
	_ engine.Previewer = (*Barrier)(nil)
)

func (*Barrier) Role() engine.StepRole { return engine.RoleBarrier }
func (b *Barrier) ID() string          { return "barrier/" + b.Name }

func (b *Barrier) Title() string {
	return cmp.Or(b.About, "Prove that every ready node knows the bridges of "+b.Name)
}

func (b *Barrier) Deadline() time.Duration { return b.Limit }
func (b *Barrier) Waits()                  {}

// State is always pending: what an earlier sentinel proved says nothing of the bridges made since.
func (b *Barrier) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do makes a new sentinel with an endpoint on every node that is ready; others would never answer,
// and the checks warn of them.
func (b *Barrier) Do(ctx context.Context) error {
	if err := RemoveThrowaways(ctx, b.Client, b.Migration); err != nil {
		return err
	}
	nodes, err := b.readyNodes(ctx)
	if err != nil {
		return err
	}
	b.sentinels = nil
	if len(nodes) == 0 {
		return nil
	}
	families := []corev1.IPFamily{""}
	if b.Also != "" {
		families = append(families, b.Also)
	}
	for _, family := range families {
		if err := b.post(ctx, family, nodes); err != nil {
			return err
		}
	}
	return nil
}

func (b *Barrier) post(ctx context.Context, family corev1.IPFamily, nodes []corev1.Node) error {
	s := &sentinel{}
	for i := range nodes {
		s.waiting = append(s.waiting, nodes[i].Name)
	}
	var err error
	if s.service, err = b.createService(ctx, family); err != nil {
		return fmt.Errorf("sentinel: %w", err)
	}
	if b.Connect != nil {
		b.sentinels = append(b.sentinels, s)
		return nil
	}
	for chunk := range slices.Chunk(nodes, endpointsPerSlice) {
		slice := b.buildSlice(s.service, chunk)
		if err := b.Client.Create(ctx, slice, client.FieldOwner(v1alpha1.FieldManager)); err != nil {
			return fmt.Errorf("sentinel endpoints: %w", err)
		}
	}
	b.sentinels = append(b.sentinels, s)
	return nil
}

func (b *Barrier) readyNodes(ctx context.Context) ([]corev1.Node, error) {
	all := &corev1.NodeList{}
	if err := b.Client.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing nodes: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(n corev1.Node) bool { return !inventory.NodeReady(&n) }), nil
}

func (b *Barrier) createService(ctx context.Context, family corev1.IPFamily) (*corev1.Service, error) {
	chosen := b.Pool != nil && family == ""
	for {
		svc := b.buildService()
		if family != "" {
			svc.Spec.IPFamilies = []corev1.IPFamily{family}
		}
		if chosen {
			own, err := b.Pool.Highest()
			if err != nil {
				return nil, err
			}
			svc.Spec.ClusterIP = own.String()
		}
		err := b.Client.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager))
		if err == nil && svc.Spec.HealthCheckNodePort == 0 && b.Connect == nil {
			return nil, &fault.Hinted{
				Err: fmt.Errorf("service %s/%s was given no health-check port", svc.Namespace, svc.Name),
				Hint: "something changes Services of type LoadBalancer as they are made: exempt namespace " + v1alpha1.SystemNamespace +
					" from mutating webhooks and policies; or have agents prove it: spec.proof.agents: Enabled",
			}
		}
		if !chosen || !IsTaken(err) {
			return svc, NotReadyYet(err)
		}
	}
}

func (b *Barrier) buildService() *corev1.Service {
	class, no := v1alpha1.LoadBalancerClass, false
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: "barrier-",
			Labels: map[string]string{v1alpha1.LabelMigration: b.Migration, v1alpha1.LabelRole: v1alpha1.RoleSentinel},
		},
		Spec: corev1.ServiceSpec{
			Type:                          corev1.ServiceTypeLoadBalancer,
			LoadBalancerClass:             &class,
			AllocateLoadBalancerNodePorts: &no,
			ExternalTrafficPolicy:         corev1.ServiceExternalTrafficPolicyLocal,
			Ports:                         []corev1.ServicePort{{Port: 9, Protocol: corev1.ProtocolTCP}},
		},
	}
	if len(b.Forget) > 0 {
		svc.Annotations = map[string]string{v1alpha1.AnnotationForget: lists.Join(b.Forget, ",")}
	}
	if b.Connect != nil {
		svc.Annotations = map[string]string{v1alpha1.AnnotationConnect: lists.Join(b.Connect.Pairs(), ",")}
		svc.Spec = corev1.ServiceSpec{
			Selector: b.Connect.Selector,
			Ports:    []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("http")}},
		}
	}
	return svc
}

func (b *Barrier) buildSlice(of *corev1.Service, nodes []corev1.Node) *discoveryv1.EndpointSlice {
	ready, port, tcp := true, int32(9), corev1.ProtocolTCP
	family := AddressType(of)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: v1alpha1.SystemNamespace, GenerateName: of.Name + "-",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: of.Name, discoveryv1.LabelManagedBy: managedBy,
				v1alpha1.LabelMigration: b.Migration, v1alpha1.LabelRole: v1alpha1.RoleSentinel,
			},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Service", Name: of.Name, UID: of.UID},
			},
		},
		AddressType: family,
		Ports:       []discoveryv1.EndpointPort{{Port: &port, Protocol: &tcp}},
	}
	for i := range nodes {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{addressOf(&nodes[i], family)},
			NodeName:   &nodes[i].Name,
			Conditions: discoveryv1.EndpointConditions{Ready: &ready},
		})
	}
	return slice
}

// AddressType is that of endpoints for the first address of a Service.
func AddressType(svc *corev1.Service) discoveryv1.AddressType {
	if a, err := netip.ParseAddr(svc.Spec.ClusterIP); err == nil && a.Is6() {
		return discoveryv1.AddressTypeIPv6
	}
	return discoveryv1.AddressTypeIPv4
}

// Documented is an address for documentation (RFC 5737, RFC 3849), which no one has.
func Documented(family discoveryv1.AddressType) string {
	if family == discoveryv1.AddressTypeIPv6 {
		return "2001:db8::1"
	}
	return "192.0.2.1"
}

// addressOf is an address of a node. No packet goes there: the endpoint only has to be on the node.
func addressOf(n *corev1.Node, family discoveryv1.AddressType) string {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err == nil && a.Type == corev1.NodeInternalIP && ip.Is6() == (family == discoveryv1.AddressTypeIPv6) {
			return a.Address
		}
	}
	return Documented(family)
}

// Verify asks every node that has not answered yet.
func (b *Barrier) Verify(ctx context.Context) error {
	var behind []string
	for _, s := range b.sentinels {
		if len(s.waiting) > 0 {
			s.waiting = b.Witness.Behind(ctx, s.service, s.waiting)
		}
		behind = append(behind, s.waiting...)
	}
	if len(behind) > 0 {
		slices.Sort(behind)
		return engine.NotYet("%s on node %s", b.missing(), strings.Join(slices.Compact(behind), ", "))
	}
	return RemoveThrowaways(ctx, b.Client, b.Migration)
}

func (b *Barrier) missing() string {
	if b.Connect != nil {
		return "both addresses do not answer yet"
	}
	return "kube-proxy has not reported the bridges"
}

// The API server chooses the name; Verify and Abandon remove both objects.
func (b *Barrier) Preview() ([]engine.Change, error) {
	const sentinel = v1alpha1.SystemNamespace + "/barrier-…"
	return []engine.Change{
		{Verb: "create", Object: "Service " + sentinel, Body: b.buildService()},
		{Verb: "create", Object: "EndpointSlice " + sentinel},
		{Verb: "delete", Object: "Service " + sentinel},
	}, nil
}

// Abandon implements engine.Abandoner: a sentinel that is no longer asked for is of no use.
func (b *Barrier) Abandon(ctx context.Context) error {
	return RemoveThrowaways(ctx, b.Client, b.Migration)
}

func (h HealthChecks) Behind(ctx context.Context, sentinel *corev1.Service, nodes []string) []string {
	var mu sync.Mutex
	var missing []string
	var eg errgroup.Group
	eg.SetLimit(32)
	for _, node := range nodes {
		eg.Go(func() error {
			actx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			body, err := h.Probe.Ask(actx, node, sentinel.Spec.HealthCheckNodePort)
			if err == nil && Passed(body, sentinel) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			missing = append(missing, node)
			return nil
		})
	}
	_ = eg.Wait() // the goroutines report in missing
	slices.Sort(missing)
	return missing
}

func (e Either) Behind(ctx context.Context, sentinel *corev1.Service, nodes []string) []string {
	missing := e.First.Behind(ctx, sentinel, nodes)
	if len(missing) == 0 {
		return nil
	}
	return e.Second.Behind(ctx, sentinel, missing)
}

// Passed reads the answer of kube-proxy's health-check server (k8s.io/kubernetes
// pkg/proxy/healthcheck/service_health.go): this very sentinel, with an endpoint.
func Passed(body []byte, sentinel *corev1.Service) bool {
	var answer struct {
		Service        struct{ Namespace, Name string }
		LocalEndpoints int
	}
	err := json.Unmarshal(body, &answer)
	return err == nil && answer.Service.Namespace == sentinel.Namespace && answer.Service.Name == sentinel.Name &&
		answer.LocalEndpoints >= 1
}

// RemoveThrowaways deletes what barriers and sync windows of a migration left behind.
func RemoveThrowaways(ctx context.Context, c client.Client, migration string) error {
	throwaways, err := labels.Parse(fmt.Sprintf("%s=%s,%s in (%s,%s)",
		v1alpha1.LabelMigration, migration, v1alpha1.LabelRole, v1alpha1.RoleSentinel, v1alpha1.RoleNudge))
	if err != nil {
		return err
	}
	opts := []client.ListOption{
		client.InNamespace(v1alpha1.SystemNamespace), client.MatchingLabelsSelector{Selector: throwaways},
	}
	var left []client.Object
	endpoints := &discoveryv1.EndpointSliceList{}
	if err := c.List(ctx, endpoints, opts...); err != nil {
		return fmt.Errorf("looking for sentinel endpoints: %w", err)
	}
	for i := range endpoints.Items {
		left = append(left, &endpoints.Items[i])
	}
	services := &corev1.ServiceList{}
	if err := c.List(ctx, services, opts...); err != nil {
		return fmt.Errorf("looking for throw-away Services: %w", err)
	}
	for i := range services.Items {
		left = append(left, &services.Items[i])
	}
	for _, o := range left {
		if err := c.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("removing %s: %w", o.GetName(), err)
		}
	}
	return nil
}
