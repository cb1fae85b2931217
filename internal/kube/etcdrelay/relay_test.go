package etcdrelay

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
)

// server is an API server as the API shows it.
func server(node string, ready corev1.ConditionStatus) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "kube-apiserver-" + node, UID: types.UID(node), Labels: map[string]string{"component": "kube-apiserver"},
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
		},
		Spec:   corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}},
	}
}

// scene is a cluster, and a relay that works on it.
type scene struct {
	*testing.T
	*Relay
}

func newScene(t *testing.T, objects ...client.Object) *scene {
	t.Helper()
	c := fake.NewClientBuilder().WithObjects(objects...).WithStatusSubresource(&corev1.Pod{}).Build()
	return &scene{T: t, Relay: &Relay{Cluster: &cluster.Cluster{WithWatch: c}, Migration: "m", Image: pull.Image{Name: "replumb:1"}}}
}

// pod is the one that is there.
func (s *scene) pod() *corev1.Pod {
	s.Helper()
	p, err := Find(s.Context(), s.Cluster)
	if err != nil {
		s.Fatal(err)
	}
	return p
}

// runs has a kubelet run the pod.
func (s *scene) runs(phase corev1.PodPhase) {
	s.Helper()
	p := s.pod()
	p.Status.Phase = phase
	if err := s.Cluster.Status().Update(s.Context(), p); err != nil {
		s.Fatal(err)
	}
}

// wait fails the test unless etcd is to be asked again for this reason.
func (s *scene) wait(part string) {
	s.Helper()
	if _, err := s.serving(s.Context()); !engine.Retryable(err) || !strings.Contains(err.Error(), part) {
		s.Fatalf("the error is %v, want %q", err, part)
	}
}

// on fails the test unless the pod serves on a node.
func (s *scene) on(node string) {
	s.Helper()
	p, err := s.serving(s.Context())
	if err != nil || p.Spec.NodeName != node {
		s.Fatalf("the pod is %v, %v, want it on %s", p, err, node)
	}
}

// TestServes: the pod is made where an API server is ready, and goes to another control plane when
// its own is away, or etcd does not answer there.
func TestServes(t *testing.T) {
	s := newScene(t, server("cp1", corev1.ConditionFalse), server("cp2", corev1.ConditionTrue), server("cp3", corev1.ConditionTrue))
	s.wait("on node cp2 was just made")
	s.wait("does not run on node cp2 yet")
	s.runs(corev1.PodRunning)
	s.on("cp2")
	s.on("cp2")

	s.avoid = "cp2" // etcd did not answer there
	s.wait("the former pod etcd-relay on node cp2 is ending")
	s.wait("on node cp3 was just made")
	s.runs(corev1.PodRunning)
	s.on("cp3")

	s.avoid = ""
	away := server("cp3", corev1.ConditionFalse)
	if err := s.Cluster.Status().Update(t.Context(), away); err != nil {
		t.Fatal(err)
	}
	s.wait("on node cp3 is ending")
	s.wait("on node cp2 was just made")
}

// TestOnlyControlPlane: the one pod stays, whatever the API shows of the only API server meanwhile.
func TestOnlyControlPlane(t *testing.T) {
	s := newScene(t, server("cp1", corev1.ConditionTrue))
	s.wait("was just made")
	s.runs(corev1.PodRunning)
	s.avoid = "cp1"
	s.on("cp1")
	if err := s.Cluster.Status().Update(t.Context(), server("cp1", corev1.ConditionFalse)); err != nil {
		t.Fatal(err)
	}
	s.on("cp1")
	if err := End(t.Context(), s.Cluster, "m"); err != nil || s.pod() != nil {
		t.Fatalf("the pod is left: %v", err)
	}
	s.wait("no control plane is seen whose API server is ready")
}

// TestLeftPod: the pod of a killed run is taken over, and one that is another, or that has ended,
// is replaced.
func TestLeftPod(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Relay)
		phase  corev1.PodPhase
		taken  bool
	}{
		"of a killed run":      {func(*Relay) {}, corev1.PodRunning, true},
		"after its lifetime":   {func(*Relay) {}, corev1.PodFailed, false},
		"of another migration": {func(r *Relay) { r.Migration = "other" }, corev1.PodRunning, false},
		"of another release":   {func(r *Relay) { r.Image.Name = "replumb:0" }, corev1.PodRunning, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newScene(t, server("cp1", corev1.ConditionTrue))
			before := *s.Relay
			tt.change(s.Relay)
			s.wait("was just made")
			s.runs(tt.phase)
			s.Relay = &before
			if tt.taken {
				s.on("cp1")
				return
			}
			s.wait("is ending")
			s.wait("was just made")
		})
	}
}

// TestEndsItsOwn leaves the pod of another migration alone.
func TestEndsItsOwn(t *testing.T) {
	s := newScene(t, server("cp1", corev1.ConditionTrue))
	s.wait("was just made")
	if err := End(t.Context(), s.Cluster, "other"); err != nil || s.pod() == nil {
		t.Errorf("it was ended: %v", err)
	}
}

// TestPodSeesNothingElse of its node than three files, and has no rights in the cluster.
func TestPodSeesNothingElse(t *testing.T) {
	spec := newScene(t).Pod("cp1").Spec
	c := spec.Containers[0]
	if len(spec.Containers) != 1 || len(c.VolumeMounts) != 3 || len(spec.Volumes) != 3 || spec.HostPID || spec.HostIPC || !spec.HostNetwork ||
		*spec.AutomountServiceAccountToken || len(c.Ports) > 0 || c.LivenessProbe != nil || spec.ActiveDeadlineSeconds == nil {
		t.Errorf("the pod is %+v", spec)
	}
	files := map[string]bool{Files().CA: true, Files().Cert: true, Files().Key: true}
	for i, v := range spec.Volumes {
		if m := c.VolumeMounts[i]; v.HostPath == nil || *v.HostPath.Type != corev1.HostPathFile || !files[v.HostPath.Path] || !m.ReadOnly || m.Name != v.Name {
			t.Errorf("it has %+v at %+v", v, m)
		}
	}
	may := c.SecurityContext
	if may.Privileged != nil || *may.AllowPrivilegeEscalation || len(may.Capabilities.Add) > 0 || may.Capabilities.Drop[0] != "ALL" || !*may.ReadOnlyRootFilesystem {
		t.Errorf("it may %+v", may)
	}
}
