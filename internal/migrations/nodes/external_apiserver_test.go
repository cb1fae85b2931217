//go:build apiserver && long

package nodes

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/testing/crash"
)

// farNetwork is where the control planes of these tests are, a part of oldNetwork: the real API
// server may have an address in the rest of it.
const farNetwork = "192.0.2.128/25"

// apiAt is the endpoint of an API server, as one writes it itself.
func apiAt(address string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "api-" + strings.ReplaceAll(address, ".", "-"),
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{address}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(int32(6443))}},
	}
}

// playControlPlanes gives the cluster Nodes of the control plane with API servers: a client that
// calls one of them at the address of its node reaches the real API server, with its real etcd.
func (f *fixture) playControlPlanes(names map[string]string) {
	f.Helper()
	for name, address := range names {
		f.controlPlane(name, address)
	}
	f.Cleanup(func() {
		all := &discoveryv1.EndpointSliceList{}
		f.Must(server.List(context.Background(), all, client.InNamespace(metav1.NamespaceDefault)))
		for i := range all.Items {
			if strings.HasPrefix(all.Items[i].Name, "api-") {
				_ = server.Delete(context.Background(), &all.Items[i])
			}
		}
	})
	config := f.operator.RESTConfig()
	real := f.operator.Host()
	config.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
		host, _, err := net.SplitHostPort(address)
		if a, parsed := netip.ParseAddr(host); err == nil && parsed == nil &&
			(netip.MustParsePrefix(farNetwork).Contains(a) || netip.MustParsePrefix(newNetwork).Contains(a)) {
			address = real
		}
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	through, err := cluster.Connect(config)
	f.Must(err)
	f.job.Tools.Cluster = crash.Watch(f.T, through)
}

func (f *fixture) controlPlane(name, address string) {
	f.Helper()
	f.node(name, address)
	n := &corev1.Node{}
	f.Must(server.Get(f.Context(), client.ObjectKey{Name: name}, n))
	was := n.DeepCopy()
	n.Labels[controlPlaneLabel] = ""
	f.Must(server.Patch(f.Context(), n, client.MergeFrom(was)))
	f.Must(server.Create(f.Context(), apiAt(address)))
}

// shapeOf is all that a change of members changes.
func shapeOf(t *testing.T, c *etcd.Client) string {
	t.Helper()
	now, err := c.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("%x", now.ID)
	for _, m := range now.Members {
		text += fmt.Sprintf(" %x %s %v %v", m.ID, m.Name, m.PeerURLs, m.Learner)
	}
	return text
}

// TestExternalEtcdStays moves the API servers of two control planes whose real etcd is elsewhere:
// it has the same members afterwards, and every write that was acknowledged meanwhile.
func TestExternalEtcdStays(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Nodes.Old.CIDRs, m.Spec.Nodes.Canary.Mode = []string{farNetwork}, v1alpha1.PodCanaryDisabled
		m.Spec.Nodes.ControlPlane = &v1alpha1.ControlPlaneSpec{
			Etcd: v1alpha1.EtcdSpec{
				External:  true,
				Endpoints: []string{"https://203.0.113.1:2379"},
				CAFile:    "/ca.crt",
				CertFile:  "/client.crt",
				KeyFile:   "/client.key",
			},
			Settle: &metav1.Duration{Duration: 100 * time.Millisecond},
		}
	})
	f.node("w", "192.0.2.130")
	old := map[string]string{"cp1": "192.0.2.131", "cp2": "192.0.2.132"}
	f.playControlPlanes(old)
	members, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{server.Etcd}, Run: "m"})
	f.Must(err)
	t.Cleanup(func() { _ = members.Close() })
	f.job.etcd = members
	before := shapeOf(t, members)

	var mu sync.Mutex
	did := map[string]bool{}
	f.runner.Sink = func(e engine.Event) {
		f.take(e)
		if e.Guide == "" {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		if did[e.Step] {
			return
		}
		did[e.Step] = true
		switch action, name, _ := strings.Cut(e.Step, "/"); action {
		case "provision":
			f.controlPlane("new-"+name, "198.51.100.1"+name[2:])
		case "retire":
			f.Must(server.Delete(context.WithoutCancel(f.Context()), apiAt(old[name])))
		}
	}
	written, stop, ended := 0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for ; ; written++ {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("write-%d", written)}}
			if err := server.Create(context.Background(), cm); err != nil {
				t.Errorf("write %d: %v", written, err)
				return
			}
		}
	}()
	err = f.apply()
	close(stop)
	<-ended
	f.Must(err)

	if after := shapeOf(t, members); after != before {
		t.Errorf("etcd was %s, and is %s", before, after)
	}
	all := &corev1.ConfigMapList{}
	f.Must(server.List(t.Context(), all, client.InNamespace("shop")))
	have := 0
	for _, cm := range all.Items {
		if strings.HasPrefix(cm.Name, "write-") {
			have++
		}
	}
	if have != written || written < 20 {
		t.Errorf("%d writes were acknowledged, and %d are there", written, have)
	}
	if got := f.nodes(); !strings.Contains(got, "new-cp1") || !strings.Contains(got, "new-cp2") || strings.Contains(" "+got, " cp") {
		t.Errorf("the nodes are %s", got)
	}
	for _, n := range f.again().Nodes {
		if n.Role == v1alpha1.RoleControlPlane &&
			(!n.Gone || n.Successor == nil || n.Successor.PeerURL != "https://198.51.100.1"+n.Name[2:]+":6443") {
			t.Errorf("recorded is %+v", n)
		}
	}
	f.Mu.Lock()
	defer f.Mu.Unlock()
	for _, e := range f.Events {
		if e.Kind == engine.StepStarted && strings.HasPrefix(e.Step, "etcd/") && !strings.HasPrefix(e.Step, "etcd/healthy/") {
			t.Errorf("step %s began", e.Step)
		}
	}
}
