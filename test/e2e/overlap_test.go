package e2e

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/overlapset"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

const (
	overlapNamespace = "ledger"
	// followWithin is how long bridges, and kube-proxies after them, have to follow a Service.
	followWithin = 3 * time.Second
)

// TestOverlap has no command run between apply and finish, while API servers are restarted and killed one by one, a Service without selector
// fails over, and a replica of what keeps bridges in step is lost. Clients make a hundred new connections a second to the old and the new
// address of Service kubernetes, and some to those of the other. They lose no more than without any migration, which is measured first. The
// control is the same without replicas.
func TestOverlap(t *testing.T) {
	l := bringUp(t, highlyAvailable("e2e-overlap"))
	o := newOverlapped(t, l)
	bare := o.disturb("without any migration", func() {})
	o.s.steady(t)

	attend(t, l, newRange, 0, "apply", "-f", o.file(), "--until", "move")
	o.callNew()
	requireStep(t, l)
	kept := o.disturb("in the overlap", o.loseReplica)
	o.s.steady(t)
	requireStep(t, l)
	o.scale(0)
	left := o.disturb("in the overlap, without replicas", func() {})
	o.scale(overlapset.Replicas)
	o.s.steady(t)

	kept.requireLikeOrBetter(t, bare)
	if left.calm.Failed <= bare.calm.Failed {
		t.Errorf("without replicas %d of %d requests were lost, and %d of %d without any migration: the clients see no loss",
			left.calm.Failed, left.calm.Sent, bare.calm.Failed, bare.calm.Sent)
	}
	attend(t, l, oldRange, 0, "rollback", "overlap", "--yes")
	requireNoTrace(t, l)
}

// overlapped is a cluster with a Service without selector that leads to one of two servers.
type overlapped struct {
	*testing.T
	l *lab.Lab
	s *shop
	// at is the server that the Service leads to.
	at string
}

// servers are those that the Service leads to in turn.
func servers() []string { return []string{"blue", "green"} }

func newOverlapped(t *testing.T, l *lab.Lab) *overlapped {
	t.Helper()
	o := &overlapped{T: t, l: l, at: servers()[0]}
	ledger := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: overlapNamespace, Name: overlapNamespace},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: workload.HTTPPort}}},
	}
	objects := []runtime.Object{workload.Namespace(overlapNamespace), ledger}
	for _, name := range servers() {
		objects = append(
			objects,
			workload.Echo{Namespace: overlapNamespace, Name: name, PartOf: overlapNamespace, Replicas: 1}.Deployment(),
		)
	}
	if _, err := start(t.Context(), l, overlapNamespace, objects); err != nil {
		t.Fatal(err)
	}
	o.lead()
	watch, err := traffic.Start(t.Context(), l.Client(), l.NodeNames(),
		traffic.CallAPI(overlapNamespace, oldAPI, traffic.Rates{Request: 25, Stream: 1}), o.call("client", traffic.ByOldAddress))
	must(t, err)
	t.Cleanup(watch.Stop)
	o.s = &shop{watch: watch}
	o.s.steady(t)
	return o
}

// call is the calls to the Service without selector where it is now.
func (o *overlapped) call(client string, via traffic.Via) traffic.Calls {
	o.Helper()
	svc, err := o.l.Client().CoreV1().Services(overlapNamespace).Get(o.Context(), overlapNamespace, metav1.GetOptions{})
	must(o, err)
	return traffic.Calls{Namespace: overlapNamespace, Client: client, Targets: map[traffic.Via][]probe.Target{via: {{
		Name: overlapNamespace, Kind: probe.HTTP, Rate: 10, Address: net.JoinHostPort(svc.Spec.ClusterIP, fmt.Sprint(workload.HTTPPort)),
	}}}}
}

// callNew adds the calls to new addresses.
func (o *overlapped) callNew() {
	o.Helper()
	for _, calls := range []traffic.Calls{
		traffic.CallNewAPI(overlapNamespace, newAPI, traffic.Rates{Request: 25}), o.call("new-client", traffic.ByNewAddress),
	} {
		must(o, o.s.watch.Add(o.Context(), o.l.Client(), o.l.NodeNames(), calls))
	}
	o.s.steady(o.T)
}

func (o *overlapped) file() string {
	o.Helper()
	return writeSpec(o.T, "overlap", `
  serviceCIDR:
    to: [%s]
    drain: %s
    gateWait: 3m
    overlap: Bridge
    follower: Enabled
    refresh: {mode: Report}
    apiServers: [%s]
  batch: {size: 8, settle: 1s}
  image: %q
  proof: {agents: Disabled}
`, newRange, shortDrain, strings.Join(o.l.APIServers(), ", "), workload.ReplumbImage)
}

// pod is the one of a server.
func (o *overlapped) pod(server string) (corev1.Pod, error) {
	all, err := o.l.Client().
		CoreV1().
		Pods(overlapNamespace).
		List(o.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + server})
	if err != nil {
		return corev1.Pod{}, err
	}
	for _, p := range all.Items {
		if p.DeletionTimestamp == nil && p.Status.PodIP != "" && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
		}) {
			return p, nil
		}
	}
	return corev1.Pod{}, fmt.Errorf("no pod of %s is ready", server)
}

// lead has the Service lead to the server that it is at.
func (o *overlapped) lead() {
	o.Helper()
	p, err := o.pod(o.at)
	must(o, err)
	slices := o.l.Client().DiscoveryV1().EndpointSlices(overlapNamespace)
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: overlapNamespace + "-own", Labels: map[string]string{discoveryv1.LabelServiceName: overlapNamespace},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(p.Spec.Containers[0].Ports[0].ContainerPort),
		}},
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{p.Status.PodIP}, NodeName: &p.Spec.NodeName}},
	}
	if have, err := slices.Get(o.Context(), s.Name, metav1.GetOptions{}); err == nil {
		have.Endpoints, have.Ports = s.Endpoints, s.Ports
		if _, err := slices.Update(o.Context(), have, metav1.UpdateOptions{}); err != nil {
			o.Fatal(err)
		}
		return
	}
	if _, err := slices.Create(o.Context(), s, metav1.CreateOptions{}); err != nil {
		o.Fatal(err)
	}
}

// failOver has the Service lead to the other server, and ends the one that it has led to a while later.
func (o *overlapped) failOver() {
	o.Helper()
	before, err := o.pod(o.at)
	must(o, err)
	o.at = servers()[1-slices.Index(servers(), o.at)]
	o.lead()
	select { // that a server stays for a while after a fail-over is part of what is tried
	case <-o.Context().Done():
	case <-time.After(followWithin):
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	must(o, o.l.Client().CoreV1().Pods(overlapNamespace).Delete(o.Context(), before.Name, now))
	other := servers()[1-slices.Index(servers(), o.at)]
	eventually(o.T, settled, func() error { _, err := o.pod(other); return err })
}

// disturbed is what clients lived through: while API servers were restarted as an operator's tooling does, and the Service failed over; and
// while API servers were killed, which loses something in any cluster.
type disturbed struct {
	what         string
	calm, killed probe.Stats
}

// disturb restarts API servers one by one, has the Service fail over, and kills API servers one by one. first is done before all that.
func (o *overlapped) disturb(what string, first func()) disturbed {
	o.Helper()
	d := disturbed{what: what}
	d.calm = o.s.during(o.T, what, func() {
		first()
		o.failOver()
		must(o, o.l.ControlPlaneNodes().RestartAPIServers(o.Context(), nil, nil))
		o.failOver()
	}).stats(o.T, fresh)
	d.killed = o.s.during(o.T, what+", API servers killed", func() {
		for _, name := range o.l.ControlPlanes() {
			kill(o.T, o.l, name, "kube-apiserver")
			if err := o.l.ControlPlaneNodes().WaitAPIServers(o.Context()); err != nil { // one at a time
				o.Fatal(err)
			}
		}
	}).stats(o.T, fresh)
	o.Logf(
		"%s: %d of %d requests were lost; when API servers were killed, %d of %d",
		what,
		d.calm.Failed,
		d.calm.Sent,
		d.killed.Failed,
		d.killed.Sent,
	)
	return d
}

// fresh chooses new connections: those that are kept break when the API server ends that they lead to.
func fresh(s traffic.Source) bool { return s.Via != traffic.ByAPIKept }

// loseReplica ends a replica without a warning, the one that leads.
func (o *overlapped) loseReplica() {
	o.Helper()
	lead, err := o.l.Client().CoordinationV1().Leases(v1alpha1.SystemNamespace).Get(o.Context(), overlapset.Name, metav1.GetOptions{})
	if err != nil || lead.Spec.HolderIdentity == nil {
		o.Fatalf("who leads? %v", err)
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
	must(o, o.l.Client().CoreV1().Pods(v1alpha1.SystemNamespace).Delete(o.Context(), *lead.Spec.HolderIdentity, now))
}

// scale has as many replicas keep bridges in step, and waits until that is so.
func (o *overlapped) scale(n int32) {
	o.Helper()
	all := o.l.Client().AppsV1().Deployments(v1alpha1.SystemNamespace)
	want := &autoscalingv1.Scale{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: overlapset.Name},
		Spec:       autoscalingv1.ScaleSpec{Replicas: n},
	}
	if _, err := all.UpdateScale(o.Context(), overlapset.Name, want, metav1.UpdateOptions{}); err != nil {
		o.Fatal(err)
	}
	eventually(o.T, settled, func() error {
		pods, err := o.l.Client().CoreV1().Pods(v1alpha1.SystemNamespace).List(o.Context(), metav1.ListOptions{
			LabelSelector: v1alpha1.LabelRole + "=" + v1alpha1.RoleOverlap,
		})
		if err != nil {
			return err
		}
		d, err := all.Get(o.Context(), overlapset.Name, metav1.GetOptions{})
		if err == nil && (int32(len(pods.Items)) != n || available(d) != n) {
			err = fmt.Errorf("there are %d pods, %d of them available", len(pods.Items), available(d))
		}
		return err
	})
}

func available(d *appsv1.Deployment) int32 { return d.Status.AvailableReplicas }

// requireStep fails the test unless status says that bridges are kept in step.
func requireStep(t *testing.T, l *lab.Lab) {
	t.Helper()
	eventually(t, settled, func() error {
		text := replumb(t, l, "status", "overlap")
		if !strings.Contains(text, "overlap: 2 of 2 replicas alive, leader overlap-") || strings.Contains(text, "warning: bridges") {
			return errors.New(text)
		}
		return nil
	})
}

// requireLikeOrBetter fails the test if more was lost than without any migration: more at all where nothing need be lost, and a larger share where
// something is.
func (d disturbed) requireLikeOrBetter(t *testing.T, bare disturbed) {
	t.Helper()
	if d.calm.Failed > bare.calm.Failed {
		t.Errorf(
			"%s %d of %d requests were lost, %s %d of %d",
			d.what,
			d.calm.Failed,
			d.calm.Sent,
			bare.what,
			bare.calm.Failed,
			bare.calm.Sent,
		)
	}
	share := func(s probe.Stats) float64 { return float64(s.Failed) / float64(max(1, s.Sent)) }
	// How long an API server takes to start again, in which a third of new connections meet none, is never twice the same.
	if got, want := share(d.killed), share(bare.killed); got > 1.5*want+0.001 {
		t.Errorf("%s, API servers killed: %.2f %% were lost, %s %.2f %%", d.what, 100*got, bare.what, 100*want)
	}
}
