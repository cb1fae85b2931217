//go:build apiserver && long

package agentset

import (
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migration"
)

func inSystem() metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace} }

// TestThereAndGone: agents come to every node, a second time changes nothing, and nothing is left
// of them.
func TestThereAndGone(t *testing.T) {
	f := setup(t)
	f.set.Pool = pool()
	f.migration("m", v1alpha1.PhaseApplying)
	done, err := f.install(f.set)
	f.Must(err)
	for _, id := range []string{
		"agents/host", "agents/policy", "agents/pods", "agents/reporting", "agents/rights", "agents/service", "agents/service/single", "agents/single",
	} {
		if !slices.Contains(done, id) {
			t.Errorf("%s did nothing, only %v", id, done)
		}
	}
	svc := &corev1.Service{ObjectMeta: inSystem()}
	if !f.get(svc, Service) || svc.Spec.ClusterIP != "10.96.7.254" {
		t.Errorf("the Service is %+v", svc.Spec)
	}
	if svc := (&corev1.Service{ObjectMeta: inSystem()}); !f.get(svc, Single) || svc.Spec.ClusterIP != "10.96.7.253" {
		t.Errorf("the Service with one endpoint is %+v", svc.Spec)
	}
	ds := &appsv1.DaemonSet{ObjectMeta: inSystem()}
	_, port, err := net.SplitHostPort(server.Host())
	f.Must(err)
	if f.get(ds, HostSet); !strings.HasSuffix(ds.Spec.Template.Spec.Containers[0].Args[3], ":"+port) {
		t.Errorf("the agents are given: %v, not of port %s", ds.Spec.Template.Spec.Containers[0].Args, port)
	}
	if o, err := f.set.Reporting(t.Context()); err != nil || strings.Join(o.Reporting, " ") != "a b" || len(o.Missing) > 0 {
		t.Errorf("reporting: %+v, %v", o, err)
	}

	again := f.newSet("m") // another process
	if done, err := f.install(again); err != nil || !slices.Equal(done, []string{"agents/reporting"}) {
		t.Errorf("a second time did %v, %v", done, err)
	}
	if why := again.Why(t.Context(), "a", pod); why.Cause != workload.Mute || !strings.HasSuffix(why.String(), "runs, but reports no more") {
		t.Errorf("silent: %v", why)
	}

	if done, err := f.remove(f.set); err != nil || !slices.Equal(done, []string{"tidy/agents", "tidy/pod-security"}) {
		t.Errorf("removing did %v, %v", done, err)
	}
	for name, o := range map[string]client.Object{
		HostSet: &appsv1.DaemonSet{ObjectMeta: inSystem()}, Service: &corev1.Service{ObjectMeta: inSystem()},
		hostAccess: &rbacv1.ClusterRole{}, podAccess: &rbacv1.ClusterRole{}, reportsPolicy: &admissionv1.ValidatingAdmissionPolicy{}, "a": &v1alpha1.NodeReport{},
	} {
		if f.get(o, name) {
			t.Errorf("%T %s is left", o, name)
		}
	}
	if done, err := f.remove(f.set); err != nil || len(done) > 0 {
		t.Errorf("removing a second time did %v, %v", done, err)
	}
}

// TestNamespaceGetsItsLabelsBack: what an admin had set there is there again when agents have gone.
func TestNamespaceGetsItsLabelsBack(t *testing.T) {
	const enforce, warn = "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/warn"
	f := setup(t)
	f.Change(func() { f.mute = []string{"a", "b"} })
	f.migration("m", v1alpha1.PhaseApplying)
	ns := &corev1.Namespace{}
	f.get(ns, v1alpha1.SystemNamespace)
	was := ns.DeepCopy()
	ns.Labels[enforce], ns.Labels["team"] = "restricted", "net"
	f.Must(server.Patch(t.Context(), ns, client.MergeFrom(was)))
	step := f.set.privilege()
	for range 2 {
		f.Must(engine.Drive(t.Context(), step))
		if f.get(ns, v1alpha1.SystemNamespace); ns.Labels[enforce] != "privileged" || ns.Labels[warn] != "restricted" {
			t.Errorf("meanwhile: %v", ns.Labels)
		}
	}
	f.migration("another", v1alpha1.PhaseApplying)
	f.Must(engine.Drive(t.Context(), step.Undo()))
	if f.get(ns, v1alpha1.SystemNamespace); ns.Labels[enforce] != "privileged" {
		t.Errorf("while another migration goes on: %v", ns.Labels)
	}
	f.migration("another", v1alpha1.PhaseFinished)
	f.Must(engine.Drive(t.Context(), step.Undo()))
	ns = &corev1.Namespace{}
	if f.get(ns, v1alpha1.SystemNamespace); ns.Labels[enforce] != "restricted" || ns.Labels["team"] != "net" || ns.Labels[warn] != "" ||
		len(ns.Annotations) > 0 {
		t.Errorf("afterwards: %v, %v", ns.Labels, ns.Annotations)
	}
}

// TestWhatWasChangedIsRepaired: steps look at what there is, not at what they did.
func TestWhatWasChangedIsRepaired(t *testing.T) {
	f := setup(t)
	_, err := f.install(f.set)
	f.Must(err)
	ds := &appsv1.DaemonSet{ObjectMeta: inSystem()}
	f.get(ds, HostSet)
	was := ds.DeepCopy()
	ds.Spec.Template.Spec.Containers[0].Image = "other"
	f.Must(server.Patch(t.Context(), ds, client.MergeFrom(was), client.FieldOwner("someone")))
	role := &rbacv1.ClusterRole{}
	f.get(role, hostAccess)
	role.Rules = role.Rules[1:]
	f.Must(server.Update(t.Context(), role, client.FieldOwner("someone")))
	svc := &corev1.Service{ObjectMeta: inSystem()}
	f.get(svc, Service)
	address := svc.Spec.ClusterIP
	svc.Spec.Ports = svc.Spec.Ports[1:]
	f.Must(server.Update(t.Context(), svc))
	done, err := f.install(f.set)
	f.Must(err)
	if want := []string{"agents/host", "agents/reporting", "agents/rights", "agents/service"}; !slices.Equal(done, want) {
		t.Errorf("did %v, want %v", done, want)
	}
	if f.get(ds, HostSet); ds.Spec.Template.Spec.Containers[0].Image != f.set.Image.Name {
		t.Errorf("the image is %s", ds.Spec.Template.Spec.Containers[0].Image)
	}
	if f.get(svc, Service); len(svc.Spec.Ports) != 3 || svc.Spec.ClusterIP != address {
		t.Errorf("the Service is %+v", svc.Spec)
	}
}

// TestPullSecretsOfAUser: agents have those that are named, more or fewer than before, and a second
// run finds nothing to do. The Secret and the namespace, which a user has made, stay when agents
// go.
func TestPullSecretsOfAUser(t *testing.T) {
	f := setup(t)
	secret := &corev1.Secret{
		ObjectMeta: inSystem(), Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte("{}")},
	}
	secret.Name = "registry"
	f.Must(server.Create(t.Context(), secret))
	f.set.Image.Secrets = []string{"registry", "mirror"}
	absent, err := f.set.Image.Absent(t.Context(), f.set.Cluster)
	if err != nil || len(absent) != 1 || absent[0].Object != "Secret replumb-system/mirror" {
		t.Errorf("found %v, %v", absent, err)
	}
	if absent, err = f.set.Image.Absent(t.Context(), f.as("reader")); err != nil || len(absent) > 0 {
		t.Errorf("who may not look finds %v, %v", absent, err)
	}
	for _, want := range [][]string{{"registry", "mirror"}, {"registry"}, nil} {
		f.set = f.newSet("m")
		f.set.Image.Secrets = want
		_, err := f.install(f.set)
		f.Must(err)
		for _, name := range []string{HostSet, PodSet} {
			ds := &appsv1.DaemonSet{ObjectMeta: inSystem()}
			f.get(ds, name)
			if got := ds.Spec.Template.Spec.ImagePullSecrets; !slices.Equal(got, f.set.Image.References()) {
				t.Errorf("%s has %v, want %v", name, got, want)
			}
		}
		done, err := f.install(f.set)
		if f.Must(err); slices.Contains(done, "agents/host") || slices.Contains(done, "agents/pods") {
			t.Errorf("%v: did %v again", want, done)
		}
	}
	_, err = f.remove(f.set)
	f.Must(err)
	f.Must(engine.Drive(t.Context(), (&migration.NamespaceStep{Cluster: server.Cluster, Migration: "m"}).Undo()))
	if ns := (&corev1.Namespace{}); !f.get(ns, v1alpha1.SystemNamespace) || ns.DeletionTimestamp != nil || !f.get(secret, "registry") {
		t.Errorf("namespace or Secret are gone: %+v", ns)
	}
	f.Must(server.Delete(t.Context(), secret))
}

// TestAnotherImage: the wait is for the pods that run it, not for those before.
func TestAnotherImage(t *testing.T) {
	f := setup(t)
	_, err := f.install(f.set)
	f.Must(err)
	next := f.newSet("m")
	next.Image.Name = "example.com/replumb:v2"
	_, err = f.install(next)
	f.Must(err)
	pods, err := next.pods(t.Context())
	f.Must(err)
	for i := range pods {
		if p := &pods[i]; p.DeletionTimestamp.IsZero() && p.Spec.Containers[0].Image != next.Image.Name {
			t.Errorf("pod %s still runs %s", p.Name, p.Spec.Containers[0].Image)
		}
	}
}

// TestNodesAreNamed: who has no agent, why, and what to do; a node that joins later gets one.
func TestNodesAreNamed(t *testing.T) {
	f := setup(t)
	f.obstacle = [2]string{"ImagePullBackOff", "not found"}
	ended := make(chan error, 1)
	go func() { _, err := f.install(f.set); ended <- err }()
	f.Waiting("has no image example.com/replumb:v1: ImagePullBackOff: not found")
	f.Change(func() { f.obstacle, f.mute = [2]string{}, []string{"b"} })
	f.Waiting("node b: pod agent-")
	f.Change(func() { f.mute = nil })
	f.Must(<-ended)

	f.Change(func() { f.mute = []string{"b", "c"} })
	f.node("c", "192.0.2.3")
	f.Until("the pods on node c to run", func() bool {
		pods, err := f.set.pods(t.Context())
		running := 0
		for _, p := range pods {
			if p.Spec.NodeName == "c" && p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		return err == nil && running == 2
	})
	short := f.newSet("m")
	short.Wait = 3 * time.Second
	_, err := f.install(short)
	var silent *SilentError
	var late *engine.DeadlineError
	if !errors.As(err, &silent) || !errors.As(err, &late) || !strings.Contains(silent.Advice(), "spec.proof.agents") {
		t.Fatalf("got %v", err)
	}
	for _, want := range []string{"node b: pod agent-", "node c: pod probe-"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in: %v", want, err)
		}
	}
	f.Change(func() { f.mute = nil })
	_, err = f.install(f.set)
	f.Must(err)
}

// TestRefused: what refuses pods is reported.
func TestRefused(t *testing.T) {
	f := setup(t)
	quota := &corev1.ResourceQuota{ObjectMeta: inSystem(), Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{corev1.ResourcePods: resource.Quantity{}},
	}}
	quota.Name = "none"
	c, err := f.set.Cluster.Any()
	f.Must(err)
	f.Must(c.Create(t.Context(), quota))
	quota.Status.Hard, quota.Status.Used = quota.Spec.Hard, corev1.ResourceList{corev1.ResourcePods: resource.Quantity{}}
	f.Must(c.Status().Update(t.Context(), quota)) // its controller does not run here
	ended := make(chan error, 1)
	go func() { _, err := f.install(f.set); ended <- err }()
	f.Waiting("exceeded quota: none")
	f.Must(c.Delete(t.Context(), quota))
	f.Must(<-ended)
}

// TestNodeThatIsNotReady: it is named and not waited for, neither when agents come nor when they
// go.
func TestNodeThatIsNotReady(t *testing.T) {
	f := setup(t)
	f.Change(func() { f.mute = []string{"b"} })
	f.Must(retry.RetryOnConflict(retry.DefaultBackoff, func() error { // controllers write to Nodes as well
		n := &corev1.Node{}
		f.get(n, "b")
		n.Status.Conditions[0].Status = corev1.ConditionUnknown
		return server.Status().Update(t.Context(), n)
	}))
	_, err := f.install(f.set)
	f.Must(err)
	if i := slices.IndexFunc(f.Events, func(e engine.Event) bool {
		return e.Step == "agents/reporting" && e.Kind == engine.StepDone && e.Note == "not ready and not waited for: b"
	}); i < 0 {
		t.Errorf("node b is not reported: %+v", f.Events)
	}
	f.fleet.Ending = time.Hour // no kubelet ends a pod; those of node a are ended by hand
	ended := make(chan error, 1)
	go func() { _, err := f.remove(f.set); ended <- err }()
	f.Waiting("on node a is still there")
	f.Must(server.DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(v1alpha1.SystemNamespace),
		client.MatchingFields{"spec.nodeName": "a"}, client.GracePeriodSeconds(0)))
	f.Must(<-ended)
}

// TestOneSetForAll: a migration that goes on keeps its agents, one that is over leaves them to the
// next.
func TestOneSetForAll(t *testing.T) {
	f := setup(t)
	f.migration("m", v1alpha1.PhaseApplying)
	_, err := f.install(f.set)
	f.Must(err)
	svc := &corev1.Service{ObjectMeta: inSystem()}
	f.get(svc, Service)
	was := svc.UID
	next := f.newSet("next")
	_, err = f.install(next)
	var state *migration.StateError
	if !errors.As(err, &state) || !strings.Contains(state.Hint, "replumb finish m") {
		t.Fatalf("got %v", err)
	}
	if done, err := f.remove(next); err != nil || len(done) > 0 {
		t.Errorf("removing others' agents did %v, %v", done, err)
	}
	f.migration("m", v1alpha1.PhaseFinished)
	_, err = f.install(next)
	f.Must(err)
	if f.get(svc, Service); svc.UID == was {
		t.Error("the Service of the migration before, with its address, is still there")
	}
	if o, err := next.Reporting(t.Context()); err != nil || len(o.Reporting) != 2 {
		t.Errorf("reporting: %+v, %v", o, err)
	}
}

// TestBridgeFirst: a Service whose old address is kept by a bridge is not taken from under it.
func TestBridgeFirst(t *testing.T) {
	f := setup(t)
	_, err := f.install(f.set)
	f.Must(err)
	b := &corev1.Service{ObjectMeta: inSystem(), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	b.Name, b.Annotations = "probe-bridge", map[string]string{v1alpha1.AnnotationService: Service}
	b.Labels = map[string]string{v1alpha1.LabelMigration: "m", v1alpha1.LabelRole: v1alpha1.RoleBridge}
	f.Must(server.Create(t.Context(), b))
	ended := make(chan error, 1)
	go func() { _, err := f.remove(f.set); ended <- err }()
	f.Waiting("bridge probe-bridge of Service replumb-system/probe is still there")
	f.Must(server.Delete(t.Context(), b))
	f.Must(<-ended)
}
