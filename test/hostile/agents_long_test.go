//go:build long

package hostile

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/verify/agent"
	"github.com/replumb/replumb/internal/verify/agentset"
	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/probe"
)

// tenantEdits lets the tenant do in its namespace what the ClusterRole edit has where a controller manager fills it.
func (s *scene) tenantEdits(resources ...string) {
	s.Helper()
	meta := metav1.ObjectMeta{Namespace: tenantSpace, Name: "edits"}
	s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), &rbacv1.Role{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: resources, Verbs: []string{"*"}}},
	})))
	s.must(client.IgnoreAlreadyExists(s.admin.Create(s.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "edits"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: tenantSpace}},
	})))
}

// TestSpeaksForANodeWithoutThePolicy: who has lifted the policy, or may write NodeReports without it, writes the report of a node. Nothing in
// it counts, and the run names the node.
func TestSpeaksForANodeWithoutThePolicy(t *testing.T) {
	s := begin(t)
	s.write(watchedByAgents + "  proof: {wait: 10s}\n")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b"}}
	s.must(client.IgnoreAlreadyExists(s.admin.Create(t.Context(), n)))
	t.Cleanup(func() { _ = s.admin.Delete(t.Context(), n) })
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	s.must(s.Status().Update(t.Context(), n))
	s.expect(s.replumb("apply", "-f", s.file), 1, "node b: ")
	s.must(s.report(s.admin, nodeReport("b", "forged", false)))
	s.must(s.report(s.admin, nodeReport("b", "forged", true)))
	s.expect(s.replumb("apply", "-f", s.file), 1, "node b: ")
	if ip := s.service(otherSpace, "cart").Spec.ClusterIP; ip != "172.31.3.7" {
		t.Errorf("service cart is at %s", ip)
	}
	s.must(s.admin.Delete(t.Context(), n))
	s.apply(0)
}

// TestTenantSaysItIsASentinel: a tenant labels a Service of his as a sentinel. The agent of every node would ask a port of his choice at its node,
// from the node's own network and for ever, and say that it has a problem, so that no migration begins.
func TestTenantSaysItIsASentinel(t *testing.T) {
	s := begin(t)
	s.write(watchedByAgents)
	s.expect(s.replumb("apply", "-f", s.file, "--until", "agents"), 0)
	class, no := v1alpha1.LoadBalancerClass, false
	lure := plain(tenantSpace, "lure", "172.31.5.6")
	lure.Labels = map[string]string{v1alpha1.LabelMigration: migrationName, v1alpha1.LabelRole: v1alpha1.RoleSentinel}
	lure.Spec.Type, lure.Spec.LoadBalancerClass, lure.Spec.AllocateLoadBalancerNodePorts = corev1.ServiceTypeLoadBalancer, &class, &no
	lure.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.tenantEdits("services")
	s.eventually(func() error { return s.tenant().Create(t.Context(), lure) })
	asked := make(chan struct{}, 1)
	port, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", lure.Spec.HealthCheckNodePort))
	s.must(err)
	defer func() { _ = port.Close() }()
	go func() {
		if conn, err := port.Accept(); err == nil {
			_ = conn.Close()
			asked <- struct{}{}
		}
	}()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "system:serviceaccount:" + v1alpha1.SystemNamespace + ":agent",
		Extra: map[string][]string{
			"authentication.kubernetes.io/node-name": {"a"}, "authentication.kubernetes.io/pod-uid": {"pod-a"},
		},
	}
	c, err := cluster.Connect(config)
	s.must(err)
	a := &agent.Agent{
		Client: c, Origin: v1alpha1.FromHost, Migration: migrationName, Instance: "pod-a", Node: "a",
		NodeIPs:  []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Interval: 100 * time.Millisecond, Ranges: []netip.Prefix{netip.MustParsePrefix(oldRange), netip.MustParsePrefix(newRange)},
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	s.eventually(func() error { // so often that it has long asked whom it asks
		r := &v1alpha1.NodeReport{}
		if err := s.Get(ctx, client.ObjectKey{Name: "a"}, r); err != nil {
			return err
		}
		if len(r.Status.Agents) != 1 || r.Status.Agents[0].Sequence < 20 {
			return errors.New("the agent has hardly reported")
		}
		return nil
	})
	stop()
	s.must(<-ended)
	select {
	case <-asked:
		t.Error("the tenant's port was asked")
	default:
	}
	s.must(s.tenant().Delete(t.Context(), lure)) // it has an old address
	s.apply(0)
}

// node has the identity of the kubelet of a node.
func (s *scene) node(name string) client.Client {
	return s.as("system:node:"+name, nil, "system:nodes")
}

// TestKubeletTakesItsNodeOutOfTheProof: a kubelet says of its own Node that there are to be no agents, so that nothing is held against what it
// does there. The label that means so is not its to set; those it may set mean nothing.
func TestKubeletTakesItsNodeOutOfTheProof(t *testing.T) {
	s := begin(t)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	s.must(client.IgnoreAlreadyExists(s.admin.Create(t.Context(), n)))
	t.Cleanup(func() { _ = s.admin.Delete(t.Context(), n) })
	set := func(key, value string) error {
		have := &corev1.Node{}
		s.must(s.Get(t.Context(), client.ObjectKey{Name: "a"}, have))
		was := have.DeepCopy()
		metav1.SetMetaDataLabel(&have.ObjectMeta, key, value)
		metav1.SetMetaDataAnnotation(&have.ObjectMeta, key, value)
		return s.node("a").Patch(t.Context(), have, client.MergeFrom(was))
	}
	for _, label := range [][2]string{
		{v1alpha1.LabelAgents, v1alpha1.NoAgents},
		{v1alpha1.LabelTrial, "true"},
		{"node-role.kubernetes.io/control-plane", ""}, // by which it would be believed what it says of API servers
	} {
		if err := set(label[0], label[1]); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", label[0], err)
		}
	}
	s.must(set("replumb.dev/agents", "none"))
	s.must(set("replumb.dev/role", "canary"))
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "a"}, n))
	if agentset.Apart(n) || len(agentset.Origins(n)) != 2 {
		t.Errorf("agents are expected in %v", agentset.Origins(n))
	}
}

// echoServer is one as agents run it.
func echoServer(t *testing.T) *echoserver.Server {
	t.Helper()
	e := &echoserver.Server{Identity: probe.EchoIdentity{Name: "probe"}, Limits: echoserver.ForAgents()}
	if err := e.Listen(t.Context(), "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	go func() { _ = e.Serve(t.Context()) }()
	return e
}

// TestLoopOfEchoServers: a pod that may send packets in others' names has two servers of agents answer each other for ever. Each side of a
// relay stands at the address that the one server believes the other to have.
func TestLoopOfEchoServers(t *testing.T) {
	_, _, first := echoServer(t).Addresses()
	_, _, second := echoServer(t).Addresses()
	var sides [2]net.PacketConn
	for i := range sides {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		sides[i] = conn
	}
	var passed atomic.Int64
	pass := func(from, over net.PacketConn, to net.Addr) {
		buffer := make([]byte, 1<<16)
		for {
			n, _, err := from.ReadFrom(buffer)
			if err != nil {
				return
			}
			passed.Add(1)
			_, _ = over.WriteTo(buffer[:n], to)
		}
	}
	go pass(sides[0], sides[1], second)
	go pass(sides[1], sides[0], first)
	for _, forged := range []string{"1", "replumb? 1", "replumb! 1"} {
		if _, err := sides[0].WriteTo([]byte(forged), first); err != nil {
			t.Fatal(err)
		}
	}
	time.AfterFunc(500*time.Millisecond, func() { _ = sides[0].SetDeadline(time.Now()); _ = sides[1].SetDeadline(time.Now()) })
	pass(sides[0], sides[1], second) // until then
	if n := passed.Load(); n > 1 {
		t.Errorf("%d answers for three datagrams", n)
	}
}

// TestEchoServerIsUsedUp: a pod opens connections and leaves them, and sends a line that does not end. Others would not be answered any more,
// which counts as lost, or the agent would end for want of memory.
func TestEchoServerIsUsedUp(t *testing.T) {
	_, tcp, _ := echoServer(t).Addresses()
	limits := echoserver.ForAgents()
	closed := make(chan struct{}, limits.FromOne+2)
	dial := func() net.Conn {
		conn, err := net.Dial("tcp", tcp.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		return conn
	}
	endless := dial()
	if _, err := endless.Write([]byte(strings.Repeat("x", 1<<20))); err == nil {
		_ = endless.SetReadDeadline(time.Now().Add(10 * time.Second))
		_, err = endless.Read(make([]byte, 1))
		if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() {
			t.Error("an endless line is waited for")
		}
	}
	for range limits.FromOne + 1 {
		conn := dial()
		go func() { _, _ = conn.Read(make([]byte, 1)); closed <- struct{}{} }()
	}
	select {
	case <-closed:
	case <-time.After(10 * time.Second):
		t.Errorf("%d connections of one address are all open", limits.FromOne+1)
	}
}
