package kill

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// Both ends of the move.
const (
	oldRange, newRange = "10.96.0.0/16", "172.24.0.0/16"
	oldAPI, newAPI     = "10.96.0.1", "172.24.0.1"
	shop               = "shop"
)

// The contents of a cluster before the migration.
const (
	// lean has what costs no time.
	lean = "lean"
	// rich has node ports and a Deployment to be restarted as well.
	rich = "rich"
	// stored is lean, and its Services change addresses in etcd: the old one stays as an externalIP.
	stored = "stored"
	// balanced is stored with the form for Cilium, the address of a load balancer.
	balanced = "balanced"
)

// cluster is an API server that runs with the new range. Behind its front it seems to have either.
type cluster struct {
	*apitest.Server
	target
	dir   string
	front *httptest.Server
	// flag is the --service-cluster-ip-range that the front shows.
	flag atomic.Pointer[string]
	// relieve stops the controller of Deployments, if it is at work.
	relieve func()
}

func start() (*cluster, error) {
	s, err := apitest.Run(newRange, apitest.Names(net.ParseIP(oldAPI), net.ParseIP(newAPI)))
	if err != nil {
		return nil, err
	}
	c := &cluster{Server: s, target: target(s.Kubeconfig)}
	if c.dir, err = os.MkdirTemp("", "replumb-kill-"); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	if err := errors.Join(c.serveFront(), s.InstallCRD(context.Background())); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

func (c *cluster) stop() error {
	if c.relieve != nil {
		c.relieve()
	}
	if c.front != nil {
		c.front.Close()
	}
	return errors.Join(c.Stop(), os.RemoveAll(c.dir))
}

// serveFront opens the address at which replumb looks at the API server: it shows the same certificate, passes requests on,
// and in the answer of /flagz replaces the range.
func (c *cluster) serveFront() error {
	var err error
	c.front, err = front(c.Server, func(r *http.Request, body []byte) []byte {
		if r.URL.Path == "/flagz" {
			return bytes.ReplaceAll(body, []byte(newRange), []byte(*c.flag.Load()))
		}
		return body
	})
	return err
}

// front stands before an API server: it shows the same certificate, passes requests on, and changes what is answered, but to who watches.
func front(api *apitest.Server, change func(r *http.Request, body []byte) []byte) (*httptest.Server, error) {
	pair, err := tls.LoadX509KeyPair(api.CertFile, api.KeyFile)
	if err != nil {
		return nil, err
	}
	to, err := url.Parse(api.Config.Host)
	if err != nil {
		return nil, err
	}
	proxy := httputil.NewSingleHostReverseProxy(to)
	if proxy.Transport, err = rest.TransportFor(api.Config); err != nil {
		return nil, err
	}
	proxy.ModifyResponse = func(r *http.Response) error {
		if r.Request.URL.Query().Has("watch") {
			return nil
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return err
		}
		body = change(r.Request, body)
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.Header.Set("Content-Length", strconv.Itoa(len(body)))
		return nil
	}
	proxy.ErrorLog = log.New(io.Discard, "", 0) // processes that are killed cancel what they asked
	server := httptest.NewUnstartedServer(proxy)
	server.Config.ErrorLog = proxy.ErrorLog
	server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	return server, nil
}

// operator plays the one who restarts the API servers with a range.
func (c *cluster) operator(serviceRange string) {
	c.flag.Store(&serviceRange)
	c.SetDefault(serviceRange)
}

// note writes the Migration to a file.
func (c *cluster) note(t *testing.T, variant string) string {
	t.Helper()
	return noted(t, c.dir, `
  serviceCIDR:
    to: [%s]
    drain: 0s
    gateWait: 10s
    apiServers: ["%s"]%s
  batch: {size: 2, settle: 0s}
`, newRange, c.front.Listener.Addr(), c.form(variant))
}

// form is how Services of a variant move, and where their other address answers.
func (c *cluster) form(variant string) string {
	form := v1alpha1.OverlapExternalIP
	switch variant {
	case lean, rich:
		return ""
	case balanced:
		form = v1alpha1.OverlapLoadBalancer
	}
	return fmt.Sprintf(`
    overlap: %s
    strategies: {clusterIP: Etcd, nodePort: Etcd}
    etcd: {endpoints: [%q]}`, form, c.Etcd)
}

// renew brings the cluster to how it is before a migration: everything in the old range.
func (c *cluster) renew(t *testing.T, variant string) {
	t.Helper()
	if c.relieve != nil {
		c.relieve()
	}
	c.clean(t)
	c.operator(oldRange)
	c.home(t)
	c.Namespace(t, shop)
	c.populate(t)
	c.operator(newRange)
	if variant == rich {
		c.enrich(t)
	}
}

// whole and killed have the API servers run with the range that the command leads to.
func (c *cluster) whole(t *testing.T, args ...string) []moment {
	t.Helper()
	c.restarted(args[0])
	return c.target.whole(t, args...)
}

func (c *cluster) killed(t *testing.T, at moment, args ...string) bool {
	t.Helper()
	c.restarted(args[0])
	return c.target.killed(t, at, args...)
}

func (c *cluster) restarted(command string) {
	if command == "rollback" {
		c.operator(oldRange)
	} else {
		c.operator(newRange)
	}
}

// movesOfServices are killed where Services hop, return, and lose their bridges.
func movesOfServices(on ...world) kind {
	richer := whole(rich)
	richer.novel = true
	return kind{
		worlds: on, variants: []variant{whole(lean), richer, inEtcd(stored), inEtcd(balanced)},
		controls: map[string]string{"apply": "hop/shop/cart", "finish": "release/shop/cart", "rollback": "return/shop/cart"},
		stays: func(d string) bool { // a restart leaves its mark
			return d == "left over: v1alpha1.Migration /move" || strings.HasPrefix(d, "differs: v1.Deployment shop/web")
		},
	}
}

// inEtcd is killed again in the steps that do another thing for it, under the names that they have in the
// first variant.
func inEtcd(name string) variant {
	v := whole(name)
	v.novel, v.anew = true, []string{"own/", "give/", "hop/", "return/", "release/", "settle/"}
	return v
}

// clean takes away what an earlier case made or left.
func (c *cluster) clean(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	for _, o := range []client.Object{
		&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: freeze.Name}},
		&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: freeze.Name}},
		&admissionv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: freeze.KeepTypeName}},
		&admissionv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: freeze.KeepTypeName}},
		&v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}},
		&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name}},
	} {
		if err := client.IgnoreNotFound(c.Delete(ctx, o)); err != nil {
			t.Fatal(err)
		}
	}
	for _, ns := range []string{shop, metav1.NamespaceSystem, v1alpha1.SystemNamespace} {
		for _, o := range []client.Object{&appsv1.Deployment{}, &appsv1.ReplicaSet{}, &corev1.Pod{}, &discoveryv1.EndpointSlice{}} {
			if err := c.DeleteAllOf(ctx, o, client.InNamespace(ns), client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		}
	}
	services := &corev1.ServiceList{}
	must(t, c.List(ctx, services))
	for i := range services.Items {
		if svc := &services.Items[i]; client.ObjectKeyFromObject(svc) != kubernetes {
			c.eventually(t, func() error { return client.IgnoreNotFound(c.Delete(ctx, svc)) }) // a freeze takes a moment to go
		}
	}
	must(t, c.DeleteAllOf(ctx, &networkingv1.IPAddress{}, client.HasLabels{v1alpha1.LabelRole}))
	c.gone(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}})
}

// gone deletes an object and waits until it is.
func (c *cluster) gone(t *testing.T, o client.Object) {
	t.Helper()
	c.eventually(t, func() error { return gone(t.Context(), c, o) })
}

// gone deletes an object, and returns an error until it is.
func gone(ctx context.Context, c client.Client, o client.Object) error {
	err := c.Delete(ctx, o)
	if err == nil {
		err = fmt.Errorf("%s is still there", o.GetName())
	}
	return client.IgnoreNotFound(err)
}

var kubernetes = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// home brings the Service kubernetes and the default range back by hand.
func (c *cluster) home(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	svc, def := &corev1.Service{}, &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: apitest.DefaultName}}
	must(t, c.Get(ctx, kubernetes, svc))
	c.eventually(t, func() error { return c.Get(ctx, client.ObjectKeyFromObject(def), def) })
	if svc.Spec.ClusterIP == oldAPI && def.Spec.CIDRs[0] == oldRange && len(svc.Annotations) == 0 {
		c.onlyDefault(t)
		return
	}
	helper := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "helper"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{oldRange}},
	}
	must(t, client.IgnoreAlreadyExists(c.Create(ctx, helper)))
	spec := `{"clusterIP":null,"clusterIPs":null,"ipFamilies":null,"ipFamilyPolicy":null,"internalTrafficPolicy":null,` +
		`"loadBalancerClass":null,"allocateLoadBalancerNodePorts":null`
	away := `{"metadata":{"annotations":null},"spec":` + spec + `,"type":"ExternalName","externalName":"away.example"}}`
	back := `{"spec":{"type":"ClusterIP","externalName":null,"externalIPs":null,"externalTrafficPolicy":null,"clusterIP":"` + oldAPI + `","clusterIPs":["` + oldAPI + `"],` +
		`"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"}}`
	for _, patch := range []string{away, back} {
		c.eventually(t, func() error { return c.Patch(ctx, svc, client.RawPatch(types.MergePatchType, []byte(patch))) })
	}
	if def.Spec.CIDRs[0] != oldRange {
		must(t, c.Delete(ctx, def))
		c.eventually(t, func() error {
			if err := c.Get(ctx, client.ObjectKeyFromObject(def), def); err != nil {
				return err
			}
			if def.Spec.CIDRs[0] != oldRange {
				return errors.New("the default range is still the new one")
			}
			return nil
		})
	}
	c.onlyDefault(t)
}

// onlyDefault removes every range but the default one.
func (c *cluster) onlyDefault(t *testing.T) {
	t.Helper()
	all := &networkingv1.ServiceCIDRList{}
	must(t, c.List(t.Context(), all))
	for i := range all.Items {
		if all.Items[i].Name != apitest.DefaultName {
			c.gone(t, &all.Items[i])
		}
	}
}

// populate makes Services of the kinds that cost no time.
func (c *cluster) populate(t *testing.T) {
	t.Helper()
	for _, svc := range []*corev1.Service{
		service(shop, "cart", "10.96.3.7"), service(shop, "by-hand", "10.96.3.9"), service(metav1.NamespaceSystem, "kube-dns", "10.96.0.10"),
	} {
		if svc.Name == "by-hand" {
			svc.Spec.Selector = nil
		}
		c.add(t, svc)
	}
	c.add(t, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: shop, Name: "by-hand-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: "by-hand", discoveryv1.LabelManagedBy: "someone"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("http"), Port: ptr.To[int32](8080)}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}}},
	})
	c.pod(t, shop, "cart-1", map[string]string{"app": "cart"}, "10.244.0.4")
	c.eventually(t, func() error { // the controllers have seen it
		slice := &discoveryv1.EndpointSlice{}
		if err := c.Get(t.Context(), types.NamespacedName{Namespace: shop, Name: "cart-standin"}, slice); err != nil {
			return err
		}
		if len(slice.Endpoints) == 0 {
			return errors.New("service cart has no endpoint")
		}
		return nil
	})
}

// add creates an object; an address may still have to become available.
func (c *cluster) add(t *testing.T, o client.Object) {
	t.Helper()
	c.eventually(t, func() error { return c.Create(t.Context(), o) })
}

func service(namespace, name, ip string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"k8s-app": name}},
		Spec: corev1.ServiceSpec{
			ClusterIP: ip, Selector: map[string]string{"app": name},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP, TargetPort: intstr.FromInt32(5353)},
			},
			SessionAffinity: corev1.ServiceAffinityClientIP,
		},
	}
}

// pod makes a pod that has run for an hour, on no node.
func (c *cluster) pod(t *testing.T, namespace, name string, labels map[string]string, ip string) {
	t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "c"}}},
	}
	must(t, c.Create(t.Context(), p))
	p.Status = runningSince(time.Now().Add(-time.Hour), ip)
	must(t, c.Status().Update(t.Context(), p))
}

func runningSince(at time.Time, ip string) corev1.PodStatus {
	since := metav1.NewTime(at)
	return corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}, StartTime: &since,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "c", Image: "c", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: since}},
		}},
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually tries until it works.
func (k target) eventually(t testing.TB, try func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) {
		last = try()
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("%v: %v", err, last)
	}
}
