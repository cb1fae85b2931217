//go:build apiserver && long

package rollout

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
)

// relieve is the step for the only workload to restart. Nodes are asked by known.
func (f *fixture) relieve(known func() error) engine.Step {
	f.Helper()
	plan := f.load().Plan(f.changes, v1alpha1.BarePodsReport)
	if len(plan.Restarts) != 1 {
		f.Fatalf("plan: %+v", plan)
	}
	return f.tools.Relieve(plan.Restarts[0], f.changes, &Departure{
		Leaver: leaving.Leaver{Client: f.Server, Migration: "m"},
		Known:  func(context.Context, string, []netip.Addr) error { return known() },
		Parted: func(context.Context, string) error { return nil },
	})
}

// leads has a Service lead to pods, as the controller of EndpointSlices does.
func (f *fixture) leads(pods ...*corev1.Pod) {
	f.Helper()
	s := &discoveryv1.EndpointSlice{ObjectMeta: f.meta("dns-1"), AddressType: discoveryv1.AddressTypeIPv4}
	f.must(client.IgnoreNotFound(f.Delete(f.Context(), s.DeepCopy())))
	s.Labels = map[string]string{discoveryv1.LabelServiceName: "dns", discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io"}
	for i, p := range pods {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{netip.AddrFrom4([4]byte{10, 244, 1, byte(i + 1)}).String()},
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: f.ns, Name: p.Name, UID: p.UID},
		})
	}
	f.must(f.Create(f.Context(), s))
}

// dns is a Deployment with a pod of before behind a Service of datagrams.
func (f *fixture) dns() (*appsv1.Deployment, *appsv1.ReplicaSet, *corev1.Pod) {
	f.Helper()
	f.must(f.Create(f.Context(), &corev1.Service{ObjectMeta: f.meta("dns"), Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 53, Protocol: corev1.ProtocolUDP}},
	}}))
	d := f.deployment()
	rs := f.replicaSet("web-1", controlledBy("Deployment", d))
	old := f.pod("web-old", 2*time.Hour, controlledBy("ReplicaSet", rs))
	f.leads(old)
	f.changes = Changes{KubernetesMovedAt: time.Now()}
	return d, rs, old
}

// farewells are the slices that keep a pod as an endpoint that ends.
func (f *fixture) farewells() int {
	f.Helper()
	all := &discoveryv1.EndpointSliceList{}
	f.must(f.List(f.Context(), all, client.InNamespace(f.ns), client.MatchingLabels{v1alpha1.LabelRole: v1alpha1.RoleLeaving}))
	return len(all.Items)
}

// TestRelieve: the pod is taken from its Deployment, another one comes, the pod leaves its Service,
// nodes are asked, and only then it ends; with the process killed after each of these.
func TestRelieve(t *testing.T) {
	f := setup(t)
	_, rs, old := f.dns()
	unknown := func() error { return engine.NotYet("node b does not know") }
	ctx, kill := context.WithCancel(t.Context())
	ended := f.start(ctx, f.relieve(unknown))
	f.waiting("0 of 1 pods are ready beside the one that leaves")
	kill()
	if err := <-ended; !errors.Is(err, engine.ErrInterrupted) {
		t.Fatal(err)
	}
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(old), old))
	if old.Labels["app"] != "web" || old.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != leaving.Released {
		t.Fatalf("the pod that is taken has labels %v: it must be in its Service, and not be the ReplicaSet's", old.Labels)
	}
	was := old.DeepCopy()
	old.OwnerReferences = nil // as its controller does
	f.must(f.Patch(t.Context(), old, client.MergeFrom(was)))

	step := f.tools.Relieve(Workload{
		Kind: KindDeployment, Namespace: f.ns, Name: "web", UID: leaving.MarkOf(old).Owner.UID,
	}, f.changes, &Departure{
		Leaver: leaving.Leaver{Client: f.Server, Migration: "m"},
		Known:  func(context.Context, string, []netip.Addr) error { return unknown() },
		Parted: func(context.Context, string) error { return nil },
	})
	f.state(step, engine.Pending)
	ctx, kill = context.WithCancel(t.Context())
	ended = f.start(ctx, step)
	f.waiting("0 of 1 pods are ready beside the one that leaves")
	next := f.pod("web-new", 0, controlledBy("ReplicaSet", rs))
	f.waiting("service " + f.ns + "/dns does not lead to pod web-new yet")
	f.leads(old, next)
	f.waiting("endpointslice " + f.ns + "/dns-1 names pod web-old")
	if n := f.farewells(); n != 1 {
		t.Errorf("%d slices say that it ends and serves", n)
	}
	f.leads(next)
	f.waiting("node b does not know")
	kill()
	t.Log("the killed run:", <-ended)
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(old), old))
	if old.Labels["app"] != leaving.Gone || f.farewells() != 1 {
		t.Fatalf("the pod that left has labels %v, and %d slices", old.Labels, f.farewells())
	}

	unknown = func() error { return nil }
	f.must(<-f.start(t.Context(), step))
	f.state(step, engine.Done)
	if err := f.Get(t.Context(), client.ObjectKeyFromObject(old), &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod has not ended: %v", err)
	}
	if n := f.farewells(); n != 0 {
		t.Errorf("%d slices are left", n)
	}
}

// TestRelieveGivesBack: where no other pod comes, the Deployment gets its pod back and is restarted
// by rollout.
func TestRelieveGivesBack(t *testing.T) {
	f := setupNamed(t, "givesback")
	d, _, old := f.dns()
	f.tools.Timeout = 10 * time.Second
	step := f.relieve(func() error { return nil })
	ctx, kill := context.WithCancel(t.Context())
	ended := f.start(ctx, step)
	f.waiting("0 of 1 pods are ready beside the one that leaves")
	f.waiting("has pod web-old again: no pod came in place of web-old")
	f.waiting("its controller has not seen the change")
	kill()
	t.Log("the killed run:", <-ended)
	f.must(f.Get(t.Context(), client.ObjectKeyFromObject(old), old))
	if _, marked := old.Annotations[v1alpha1.AnnotationLeaving]; marked || leaving.Marked(old, "") || old.Labels["app"] != "web" {
		t.Errorf("the pod is marked still: %v, %v", old.Labels, old.Annotations)
	}
	if f.restartedAt(d) == "" {
		t.Error("not restarted by rollout")
	}
	if note := step.(engine.Noter).Note(); note == "" {
		t.Error("nothing is said of it")
	}
}

func TestUnfit(t *testing.T) {
	fit := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}}
	recreate := fit.DeepCopy()
	recreate.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
	onHost, withPort := fit.DeepCopy(), fit.DeepCopy()
	onHost.Spec.Template.Spec.HostNetwork = true
	withPort.Spec.Template.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{HostPort: 53}}}}
	for name, tt := range map[string]struct {
		d    *appsv1.Deployment
		want bool
	}{
		"as usual": {fit, true}, "recreate": {recreate, false}, "on the host": {onHost, false}, "a port of the host": {withPort, false},
	} {
		if got := unfit(deploymentAdapter{tt.d}); (got == "") != tt.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
