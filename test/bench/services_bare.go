package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/testing/apitest"
)

const (
	oldRange, newRange = "10.96.0.0/16", "172.24.0.0/16"
	batchSize          = 500
	// Offsets into a range: the Services, where the bare client moves them to, and its bridges.
	servicesAt, rawAt, bridgesAt = 0x100, 0x4000, 0x8000
)

// shelf is an API server with many Services.
type shelf struct {
	server  *apitest.Server
	cluster *cluster.Cluster
	// plain is a client that does not adapt to what the API server takes.
	plain   client.Client
	counter *counter
	n       int
}

// newShelf starts an API server and fills it. The node-port range is wide, since every
// load-balancer bridge takes a health-check port. inFlight, if not 0, is how many requests of users
// it takes at once.
func newShelf(ctx context.Context, n, inFlight int) (*shelf, error) {
	options := []apitest.Option{apitest.WithoutEndpoints(), apitest.Flag("service-node-port-range", "10000-40000")}
	if inFlight > 0 {
		// With priority and fairness, requests would be queued first; refused they are then by the
		// hundreds.
		options = append(options, apitest.Flag("enable-priority-and-fairness", "false"),
			apitest.Flag("max-requests-inflight", strconv.Itoa(inFlight-inFlight/2)),
			apitest.Flag("max-mutating-requests-inflight", strconv.Itoa(inFlight/2)))
	}
	server, err := apitest.Run(oldRange, options...)
	if err != nil {
		return nil, err
	}
	f := &shelf{server: server, n: n}
	if err := f.connect(ctx, inFlight > 0); err != nil {
		return nil, errors.Join(err, server.Stop())
	}
	return f, nil
}

// connect fills the API server, as a user whom it refuses when it is busy, if asked to: it never
// refuses the group of administrators.
func (f *shelf) connect(ctx context.Context, asUser bool) (err error) {
	config, counter := counted(f.server.Config)
	f.counter = counter
	if asUser {
		const user = "bench"
		config.Impersonate = rest.ImpersonationConfig{UserName: user}
		if err := f.server.Create(ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
		}); err != nil {
			return err
		}
	}
	if f.cluster, err = cluster.Connect(config); err != nil {
		return err
	}
	if f.plain, err = client.New(quick(config), client.Options{Scheme: f.cluster.Scheme()}); err != nil {
		return err
	}
	return f.fill(ctx)
}

func (f *shelf) fill(ctx context.Context) error {
	if err := makeNamespaces(ctx, f.cluster); err != nil {
		return err
	}
	return inParallel(f.n, 16, func(i int) error {
		return f.cluster.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: key(i).Namespace, Name: key(i).Name, Labels: map[string]string{"app": key(i).Name}},
			Spec: corev1.ServiceSpec{
				ClusterIP: offset(oldRange, servicesAt+i).String(),
				Selector:  map[string]string{"app": key(i).Name},
				Ports: []corev1.ServicePort{
					{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
					{Name: "metrics", Port: 9090, TargetPort: intstr.FromInt32(9090)},
				},
			},
		})
	})
}

func key(i int) types.NamespacedName {
	return types.NamespacedName{Namespace: namespaceOf(i), Name: fmt.Sprintf("service-%d", i)}
}

func offset(cidr string, n int) netip.Addr {
	b := netip.MustParsePrefix(cidr).Addr().As4()
	b[2], b[3] = byte(n>>8), byte(n)
	return netip.AddrFrom4(b)
}

// raw are the writes of a move, sent by a client that looks at nothing.
type raw struct {
	*shelf
	form v1alpha1.BridgeForm
	// cidr is the range the Services are in, at the offset in it that they go to.
	cidr     string
	at       int
	parallel int
	// holds adds the other writes that replumb's procedure has: the address that no Service owns is
	// held on either side of the hop, the bridge gives the new address up after it, and the
	// Service's annotations are removed at the end.
	holds bool
}

// run moves every Service within its range in the order in which replumb does: batch by batch the
// bridges and the hops, and at the end all bridges away. The order matters: the API server counts
// all addresses in use whenever it gives or takes one (Used in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator/ipallocator.go), so the more bridges there are, the more
// every further write costs.
func (r *raw) run(ctx context.Context) (cost, error) {
	all, bridges := make([]*corev1.Service, r.n), make([]*corev1.Service, r.n)
	for i := range all {
		all[i] = &corev1.Service{}
		if err := r.plain.Get(ctx, key(i), all[i]); err != nil {
			return cost{}, err
		}
	}
	r.counter.reset()
	stop := clock()
	for first := 0; first < len(all); first += batchSize {
		n := min(batchSize, len(all)-first)
		if err := inParallel(n, r.parallel, func(i int) (err error) {
			bridges[first+i], err = r.bridge(ctx, all[first+i], first+i)
			return err
		}); err != nil {
			return cost{}, err
		}
		if err := inParallel(n, r.parallel, func(i int) error { return r.hop(ctx, all[first+i], first+i) }); err != nil {
			return cost{}, err
		}
		if err := inParallel(n, r.parallel, func(i int) error { return r.narrow(ctx, all[first+i], bridges[first+i]) }); err != nil {
			return cost{}, err
		}
	}
	err := inParallel(len(all), r.parallel, func(i int) error { return r.release(ctx, all[i], bridges[i]) })
	return stop(), err
}

func (r *raw) bridge(ctx context.Context, svc *corev1.Service, i int) (*corev1.Service, error) {
	if err := r.hold(ctx, i, r.target(i)); err != nil {
		return nil, err
	}
	b := &bridge.Bridge{
		Migration: "raw", Service: svc, Old: netip.MustParseAddr(svc.Spec.ClusterIP), New: r.target(i),
		Own: offset(r.cidr, bridgesAt+i), Form: r.form,
	}
	if r.form == byEtcd {
		b.Form = v1alpha1.BridgeExternalIPs
	}
	made := b.Build()
	ingress := made.Status
	if err := r.plain.Create(ctx, made); err != nil || b.Form == v1alpha1.BridgeExternalIPs {
		return made, err
	}
	was := made.DeepCopy()
	made.Status = ingress
	return made, r.plain.Status().Patch(ctx, made, client.MergeFrom(was))
}

func (r *raw) target(i int) netip.Addr { return offset(r.cidr, r.at+i) }

func (r *raw) hop(ctx context.Context, svc *corev1.Service, i int) error {
	original, err := json.Marshal(svc.Spec)
	if err != nil {
		return err
	}
	old := netip.MustParseAddr(svc.Spec.ClusterIP)
	if err := r.patch(ctx, svc, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{
			v1alpha1.AnnotationOldIP: svc.Spec.ClusterIP, v1alpha1.AnnotationTargetIP: r.target(i).String(),
			v1alpha1.AnnotationOriginalSpec: string(original), v1alpha1.LabelMigration: "raw",
		}},
		"spec": map[string]any{
			"type": corev1.ServiceTypeExternalName, "externalName": "b.ns.svc.cluster.local", "clusterIP": nil, "clusterIPs": nil,
			"ipFamilies": nil, "ipFamilyPolicy": nil, "internalTrafficPolicy": nil, "externalTrafficPolicy": nil,
		},
	}); err != nil {
		return err
	}
	if err := r.hold(ctx, i, old); err != nil {
		return err
	}
	if err := r.unhold(ctx, r.target(i)); err != nil {
		return err
	}
	return r.patch(ctx, svc, map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationMovedAt: time.Now().Format(time.RFC3339Nano)}},
		"spec": map[string]any{
			"type": corev1.ServiceTypeClusterIP, "externalName": nil,
			"clusterIP": r.target(i).String(), "clusterIPs": []string{r.target(i).String()},
		},
	})
}

// narrow leaves the bridge the old address alone.
func (r *raw) narrow(ctx context.Context, svc, made *corev1.Service) error {
	if !r.holds {
		return nil
	}
	old := svc.Annotations[v1alpha1.AnnotationOldIP]
	if r.form != v1alpha1.BridgeLoadBalancer {
		return r.patch(ctx, made, map[string]any{"spec": map[string]any{"externalIPs": []string{old}}})
	}
	was := made.DeepCopy()
	made.Status.LoadBalancer.Ingress = made.Status.LoadBalancer.Ingress[:1] // Build has the old address first
	return r.plain.Status().Patch(ctx, made, client.MergeFrom(was))
}

func (r *raw) release(ctx context.Context, svc, made *corev1.Service) error {
	if err := r.plain.Delete(ctx, made); err != nil || !r.holds {
		return err
	}
	if err := r.unhold(ctx, netip.MustParseAddr(svc.Annotations[v1alpha1.AnnotationOldIP])); err != nil {
		return err
	}
	return r.patch(ctx, svc, map[string]any{"metadata": map[string]any{"annotations": map[string]any{
		v1alpha1.AnnotationOldIP: nil, v1alpha1.AnnotationTargetIP: nil, v1alpha1.AnnotationOriginalSpec: nil,
		v1alpha1.LabelMigration: nil, v1alpha1.AnnotationMovedAt: nil,
	}}})
}

func (r *raw) patch(ctx context.Context, svc *corev1.Service, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	return r.plain.Patch(ctx, svc, client.RawPatch(types.MergePatchType, body))
}

func (r *raw) hold(ctx context.Context, i int, a netip.Addr) error {
	if !r.holds {
		return nil
	}
	err := r.plain.Create(ctx, (&bridge.Hold{Migration: "raw", Address: a, Bridge: key(i)}).Build())
	// The controller that repairs IPAddresses, behind on a busy machine, may have given the address
	// back to the Service.
	return client.IgnoreAlreadyExists(err)
}

func (r *raw) unhold(ctx context.Context, a netip.Addr) error {
	if !r.holds {
		return nil
	}
	return client.IgnoreNotFound(r.plain.Delete(ctx, &networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: a.String()}}))
}

// clean removes the annotations that the bare client leaves behind, outside of what is measured.
func (f *shelf) clean(ctx context.Context) error {
	r := &raw{shelf: f}
	return inParallel(f.n, 16, func(i int) error {
		svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: key(i).Namespace, Name: key(i).Name}}
		return r.patch(ctx, svc, map[string]any{"metadata": map[string]any{"annotations": nil}})
	})
}
