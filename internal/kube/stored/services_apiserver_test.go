//go:build apiserver && long

package stored

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/testing/apitest"
)

func serve(t *testing.T, opts ...apitest.Option) *apitest.Server {
	t.Helper()
	s, err := apitest.Run("10.96.0.0/16", opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Stop() })
	return s
}

// services are those in the etcd at an address.
func services(t *testing.T, endpoint string) *Services {
	t.Helper()
	c, err := etcd.Open(t.Context(), etcd.Config{Endpoints: []string{endpoint}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return &Services{Etcd: c, Prefix: DefaultPrefix}
}

// exchange makes one, without a lock.
func exchange(t *testing.T, s *Services, x Exchange) error {
	t.Helper()
	return s.Exchange(t.Context(), nil, x)[0]
}

func create(t *testing.T, s *apitest.Server) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cart"},
		Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if err := s.Create(t.Context(), svc); err != nil {
		t.Fatal(err)
	}
	return svc
}

func get(t *testing.T, s *apitest.Server, name string) *corev1.Service {
	t.Helper()
	svc := &corev1.Service{}
	if err := s.Get(t.Context(), types.NamespacedName{Namespace: "default", Name: name}, svc); err != nil {
		t.Fatal(err)
	}
	return svc
}

// unchanged fails the test if an API server answers with another revision of a Service than it did.
func unchanged(t *testing.T, s *apitest.Server, svc *corev1.Service) {
	t.Helper()
	now := get(t, s, svc.Name)
	if now.ResourceVersion != svc.ResourceVersion {
		t.Errorf("it was written: %+v", now.Spec)
	}
}

// ownAddress adds an address of its own to a Service.
func ownAddress(svc *corev1.Service) { svc.Spec.ExternalIPs = []string{"10.96.0.8"} }

// TestEtcdOfAnotherCluster refuses an etcd whose revisions or objects are not the API server's.
func TestEtcdOfAnotherCluster(t *testing.T) {
	ours, theirs := serve(t), serve(t)
	svc, other := create(t, ours), create(t, theirs)
	err := exchange(t, services(t, theirs.Etcd), Exchange{Service: svc, Change: ownAddress})
	if !errors.As(err, new(*IdentityError)) || !Permanent(err) {
		t.Errorf("another cluster's etcd is taken: %v", err)
	}
	unchanged(t, ours, svc)
	unchanged(t, theirs, other)
	if err := exchange(t, services(t, ours.Etcd), Exchange{Service: svc, Change: ownAddress}); err != nil {
		t.Errorf("control: its own etcd is refused: %v", err)
	}
}

// TestChangedSinceItWasRead writes nothing over what others wrote, also where the revision that was
// read is compacted.
func TestChangedSinceItWasRead(t *testing.T) {
	s := serve(t)
	read := create(t, s)
	now := read.DeepCopy()
	now.Spec.Ports[0].Port = 8080
	if err := s.Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	all := services(t, s.Etcd)
	for _, compacted := range []bool{false, true} {
		if compacted {
			compact(t, s)
		}
		err := exchange(t, all, Exchange{Service: read, Change: ownAddress})
		if !errors.Is(err, ErrChanged) || Permanent(err) {
			t.Errorf("a Service that has changed was written, or is given up: %v", err)
		}
		unchanged(t, s, now)
	}
	if err := exchange(t, all, Exchange{Service: now, Change: ownAddress}); err != nil {
		t.Errorf("control: what was read after compaction is refused: %v", err)
	}
}

// TestExchangeOfAddresses changes a Service and both IPAddresses at once, as an API server reads
// them, or nothing of it.
func TestExchangeOfAddresses(t *testing.T) {
	s := serve(t)
	svc := create(t, s)
	target := &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.96.0.9"},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: "default", Name: "cart",
		}},
	}
	if err := s.Create(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	mark := func(ip *networkingv1.IPAddress) error {
		ip.CreationTimestamp = metav1.Now()
		ip.Labels = map[string]string{
			"at": ip.Name, networkingv1.LabelIPAddressFamily: string(corev1.IPv4Protocol), networkingv1.LabelManagedBy: "ipallocator.k8s.io",
		}
		if ip.Name == "10.96.0.7" { // what is not the Service's any more is cleaned up else
			ip.Labels[networkingv1.LabelManagedBy] = "a test"
		}
		return nil
	}
	refusal := errors.New("it is another's")
	x := Exchange{Service: svc, Change: func(svc *corev1.Service) {
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = "10.96.0.9", []string{"10.96.0.9"}
	}}
	all := services(t, s.Etcd)
	for name, second := range map[string]func(*networkingv1.IPAddress) error{
		"10.96.0.9":  func(*networkingv1.IPAddress) error { return refusal },
		"10.96.0.10": mark, // which does not exist
	} {
		x.Addresses = map[string]func(*networkingv1.IPAddress) error{"10.96.0.7": mark, name: second}
		if err := exchange(t, all, x); err == nil || Permanent(err) {
			t.Errorf("with %s: %v", name, err)
		}
		unchanged(t, s, svc)
	}
	// The address first: what repairs IPAddresses would make another one else.
	first := Exchange{Service: svc, Addresses: map[string]func(*networkingv1.IPAddress) error{"10.96.0.9": mark}}
	x.Addresses = map[string]func(*networkingv1.IPAddress) error{"10.96.0.7": mark}
	for _, x := range []Exchange{first, x} {
		if err := exchange(t, all, x); err != nil {
			t.Fatal(err)
		}
	}
	if now := get(t, s, "cart"); now.Spec.ClusterIP != "10.96.0.9" {
		t.Errorf("it is at %s", now.Spec.ClusterIP)
	}
	ip := &networkingv1.IPAddress{}
	if err := s.Get(t.Context(), types.NamespacedName{Name: "10.96.0.7"}, ip); err != nil || ip.Labels["at"] != "10.96.0.7" {
		t.Errorf("it has labels %v (%v)", ip.Labels, err)
	}
}

// TestExchangeUnderALock: who has lost the lock writes nothing.
func TestExchangeUnderALock(t *testing.T) {
	s := serve(t)
	svc, key := create(t, s), types.NamespacedName{Namespace: "default", Name: "lock"}
	all := services(t, s.Etcd)
	held := func(by string) *HeldLease {
		return &HeldLease{Lease: key, Holds: func(l *coordinationv1.Lease) bool { return *l.Spec.HolderIdentity == by }}
	}
	under := func(lock *HeldLease) error {
		return all.Exchange(t.Context(), lock, Exchange{Service: svc, Change: ownAddress})[0]
	}
	if err := under(held("me")); !engine.Revoked(err) {
		t.Errorf("without a Lease: %v", err)
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name},
		Spec:       coordinationv1.LeaseSpec{HolderIdentity: ptr.To("another")},
	}
	if err := s.Create(t.Context(), lease); err != nil {
		t.Fatal(err)
	}
	if err := under(held("me")); !engine.Revoked(err) {
		t.Errorf("with a Lease of another: %v", err)
	}
	taken := held("another")
	taken.Holds = func(l *coordinationv1.Lease) bool {
		holds := *l.Spec.HolderIdentity == "another"
		lease.Spec.HolderIdentity = ptr.To("a third") // right after it was seen to be held
		if err := s.Update(t.Context(), lease); err != nil {
			t.Error(err)
		}
		return holds
	}
	if err := under(taken); !engine.Revoked(err) {
		t.Errorf("with a Lease that is taken meanwhile: %v", err)
	}
	unchanged(t, s, svc)
	if err := under(held("a third")); err != nil {
		t.Errorf("control: the holder is refused: %v", err)
	}
}

// compact has an API server's etcd forget all revisions but the last.
func compact(t *testing.T, s *apitest.Server) {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.Etcd}, DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	answer, err := c.Get(t.Context(), DefaultPrefix)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), answer.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// TestEncryptedAtRest refuses what an API server has encrypted.
func TestEncryptedAtRest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "encryption.yaml")
	const config = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [services]
  providers:
  - aescbc: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
`
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := serve(t, apitest.Flag("encryption-provider-config", file))
	svc := create(t, s)
	err := services(t, s.Etcd).Check(t.Context(), []*corev1.Service{svc})[0]
	if !errors.As(err, new(*EncodingError)) || !Permanent(err) {
		t.Errorf("what is encrypted is taken: %v", err)
	}
	unchanged(t, s, svc)
}

// TestMemberWithoutQuorum gets no answer that could be believed, and is worth another try.
func TestMemberWithoutQuorum(t *testing.T) {
	endpoint, kill := pair(t)
	all := services(t, endpoint)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "cart", UID: "1", ResourceVersion: "1"}}
	check := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		return all.Check(ctx, []*corev1.Service{svc})[0]
	}
	if err := check(); !Permanent(err) {
		t.Fatalf("control: with a quorum it does not say that it has no such Service: %v", err)
	}
	kill()
	if err := check(); err == nil || Permanent(err) {
		t.Errorf("a member without a quorum answers: %v", err)
	}
}

// pair is an etcd of two members: where to reach one, and what ends the other.
func pair(t *testing.T) (endpoint string, kill func()) {
	t.Helper()
	peers, clients := free(t, 2), free(t, 2)
	for i, name := range []string{"one", "two"} {
		cmd := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "etcd"),
			"--name="+name, "--data-dir="+t.TempDir(), "--log-level=error",
			"--listen-client-urls="+clients[i], "--advertise-client-urls="+clients[i],
			"--listen-peer-urls="+peers[i], "--initial-advertise-peer-urls="+peers[i],
			"--initial-cluster="+fmt.Sprintf("one=%s,two=%s", peers[0], peers[1]))
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		kill = sync.OnceFunc(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		t.Cleanup(kill)
	}
	c, err := clientv3.New(clientv3.Config{Endpoints: clients[:1], DialTimeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := c.Get(ctx, DefaultPrefix); err != nil { // once both are there
		t.Fatal(err)
	}
	return clients[0], kill
}

// free are URLs at which nothing listens.
func free(t *testing.T, n int) (urls []string) {
	t.Helper()
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		urls = append(urls, "http://"+l.Addr().String())
	}
	return urls
}
