//go:build apiserver && long

package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/pki"
)

const patience = 10 * time.Second

// await waits until a condition has no error.
func await(t *testing.T, condition func() error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, patience, true, func(context.Context) (bool, error) {
		last = condition()
		return last == nil, nil
	})
	if err != nil {
		t.Fatal(errors.Join(err, last))
	}
}

func tlsSecret(t *testing.T, ca *pki.CA, name string, hosts ...string) *corev1.Secret {
	t.Helper()
	pair, err := ca.Issue(pki.Request{CommonName: hosts[0], Names: hosts})
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{corev1.TLSCertKey: pair.Cert, corev1.TLSPrivateKeyKey: pair.Key},
	}
}

// TestFollowsTheCluster has an Ingress, its Secret and its Service come and change, and looks at what is served.
func TestFollowsTheCluster(t *testing.T) {
	server := apitest.Start(t, "10.96.0.0/16")
	client := kubernetes.NewForConfigOrDie(server.Config)
	server.Namespace(t, "shop")
	c, err := newController(client, "lab", "172.30.0.50")
	if err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	ended := make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		c.run(ctx, func() { close(ready) })
		close(ended)
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	<-ready

	backendServer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s %s", r.Host, r.URL, r.Header.Get("X-Forwarded-Proto"))
	}))
	defer backendServer.Close()
	found := ""
	p := &proxy{routes: c.table.Load, byPath: inCluster, find: func(b backend) (host string, err error) {
		found, err = c.find(b)
		return backendServer.Listener.Addr().String(), err
	}}
	front := httptest.NewUnstartedServer(p.handler())
	front.TLS = p.tlsConfig()
	front.StartTLS()
	defer front.Close()
	ca, err := pki.NewCA("test")
	if err != nil {
		t.Fatal(err)
	}
	ask := func(host string) error { return askOverTLS(t, front, ca, host) }

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "front"},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "web", Port: 8000}}},
	}
	if _, err := client.CoreV1().Services("shop").Create(ctx, service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	first := ingressOf("", "front", 0, networkingv1.IngressSpec{
		IngressClassName: ptr.To("lab"),
		Rules:            []networkingv1.IngressRule{ruleFor("a.example", path(networkingv1.PathTypePrefix, "/", "front"))},
		TLS:              []networkingv1.IngressTLS{{Hosts: []string{"a.example", "b.example"}, SecretName: "front"}},
	})
	first.Spec.Rules[0].HTTP.Paths[0].Backend.Service.Port = networkingv1.ServiceBackendPort{Name: "web"}
	foreign := first.DeepCopy()
	foreign.Name, foreign.Spec.IngressClassName, foreign.Spec.Rules[0].Host = "foreign", ptr.To("nginx"), "c.example"
	for _, i := range []*networkingv1.Ingress{first, foreign} {
		if _, err := client.NetworkingV1().Ingresses("shop").Create(ctx, i, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	await(t, func() error { return foundAt(ctx, client, "front", "172.30.0.50") })
	if err := ask("a.example"); err == nil {
		t.Error("it serves TLS without a certificate")
	}
	if _, err := client.CoreV1().Secrets("shop").Create(ctx, tlsSecret(t, ca, "front", "a.example"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return ask("a.example") })
	if want := "front.shop.svc.cluster.local.:8000"; found != want {
		t.Errorf("it leads to %s, want %s", found, want)
	}
	if err := ask("b.example"); err == nil {
		t.Error("a certificate is good for a name that it has not")
	}
	renewed := tlsSecret(t, ca, "front", "a.example", "b.example")
	if _, err := client.CoreV1().Secrets("shop").Update(ctx, renewed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, func() error { return verifies(front, ca, "b.example") })
	if err := foundAt(ctx, client, "foreign"); err != nil || c.table.Load().knows("c.example") {
		t.Errorf("it looks after an Ingress of another class: %v", err)
	}
}

// foundAt fails unless an Ingress's status has exactly these addresses.
func foundAt(ctx context.Context, client kubernetes.Interface, name string, want ...string) error {
	i, err := client.NetworkingV1().Ingresses("shop").Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	var got []string
	for _, at := range i.Status.LoadBalancer.Ingress {
		got = append(got, at.IP)
	}
	if !slices.Equal(got, want) {
		return fmt.Errorf("found at %v, want %v", got, want)
	}
	return nil
}

func trusting(ca *pki.CA, host string) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca.Cert)
	return &tls.Config{RootCAs: roots, ServerName: host}
}

// verifies fails unless a host is served with a certificate of its own.
func verifies(front *httptest.Server, ca *pki.CA, host string) error {
	conn, err := tls.Dial("tcp", front.Listener.Addr().String(), trusting(ca, host))
	if err != nil {
		return err
	}
	return conn.Close()
}

// askOverTLS fails unless the host's answer comes from the backend, which must have heard of the host and of TLS.
func askOverTLS(t *testing.T, front *httptest.Server, ca *pki.CA, host string) error {
	t.Helper()
	transport := &http.Transport{TLSClientConfig: trusting(ca, host), DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, front.URL+"/x?y", nil)
	if err != nil {
		return err
	}
	request.Host = host
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body := make([]byte, 100)
	n, _ := response.Body.Read(body)
	if got, want := string(body[:n]), host+" /x?y https"; got != want {
		return fmt.Errorf("got %q, want %q", got, want)
	}
	return nil
}
