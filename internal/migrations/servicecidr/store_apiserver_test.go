//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
)

// throughKubeadm has balanced Services move through a pod on a control plane.
func throughKubeadm(m *v1alpha1.Migration) {
	m.Spec.ServiceCIDR.Etcd = &v1alpha1.StoreSpec{Source: v1alpha1.SourceKubeadm}
	m.Spec.ServiceCIDR.Strategies.LoadBalancer = v1alpha1.StrategyOfEtcd
	m.Spec.ServiceCIDR.Follower = v1alpha1.FollowerDisabled
	m.Spec.Image, m.Spec.Proof.Agents = "replumb.example/replumb:test", v1alpha1.AgentsDisabled
}

// apiServerOfKubeadm is an API server as a kubelet shows it, with flags beside those of kubeadm.
func (f *fixture) apiServerOfKubeadm(node string, flags ...string) {
	f.Helper()
	files := etcdrelay.Files()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "kube-apiserver-" + node, Labels: map[string]string{"component": "kube-apiserver"},
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "kube-apiserver", Image: "kube-apiserver",
			Command: append(append([]string{"kube-apiserver"}, flags...), "--etcd-servers=https://127.0.0.1:2379", "--etcd-cafile="+files.CA,
				"--etcd-certfile="+files.Cert, "--etcd-keyfile="+files.Key),
		}}},
	}
	f.must(server.Create(f.Context(), p))
	f.Cleanup(func() { f.must(server.Delete(context.Background(), p)) })
	p.Status.Phase, p.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	f.must(server.Status().Update(f.Context(), p))
}

// relay is the pod on a control plane; nil, if there is none.
func (f *fixture) relay() *corev1.Pod {
	f.Helper()
	p, err := etcdrelay.Find(context.WithoutCancel(f.Context()), server)
	f.must(err)
	return p
}

// TestEtcdOfKubeadmIsRefused before anything is written, where API servers do not reach it as
// kubeadm has them do.
func TestEtcdOfKubeadmIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		flags []string
		seen  bool
		want  string
	}{
		"nothing is seen": {nil, false, "no API server is seen that a kubelet runs from a file"},
		"another prefix": {
			[]string{"--etcd-prefix=/k8s"},
			true,
			"node cp1, /etc/kubernetes/manifests/kube-apiserver.yaml: the API server runs with --etcd-prefix=/k8s",
		},
		"in two": {[]string{"--etcd-servers-overrides=/events#https://127.0.0.1:2382"}, true, "may be in another etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, throughKubeadm)
			was := f.balanced("balanced", "10.96.3.1")
			if tt.seen {
				f.apiServerOfKubeadm("cp1", tt.flags...)
			}
			_, err := f.job.Apply(t.Context(), f.runner)
			if err == nil || !strings.Contains(err.Error(), "RP1723") || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("apply ended with %v, want %q", err, tt.want)
			}
			if is := f.get("balanced"); is.ResourceVersion != was.ResourceVersion || f.relay() != nil {
				t.Error("something was written")
			}
		})
	}
}

// TestPodReachesEtcd: the run waits for a pod that no kubelet runs here, on the control plane, and
// deletes it when it is interrupted. No Service is touched before etcd has answered.
func TestPodReachesEtcd(t *testing.T) {
	f := setup(t, throughKubeadm)
	f.apiServerOfKubeadm("cp1")
	was := f.balanced("balanced", "10.96.3.1")
	p, err := f.job.Look(t.Context())
	f.must(err)
	p.Apply().Outstanding(t.Context()) // a plan makes no pod
	if f.relay() != nil {
		t.Fatal("a plan has made the pod")
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	var there *corev1.Pod
	sink := f.runner.Sink
	f.runner.Sink = func(e engine.Event) {
		if e.Kind == engine.StepWaiting && e.Step == "etcd/reach" && there == nil {
			there = f.relay()
			interrupt()
		}
		if sink != nil {
			sink(e)
		}
	}
	if _, err := f.job.Apply(ctx, f.runner); !errors.Is(err, engine.ErrInterrupted) {
		t.Fatalf("apply ended with %v", err)
	}
	if there == nil || there.Spec.NodeName != "cp1" || there.Spec.Containers[0].Image != "replumb.example/replumb:test" {
		t.Errorf("the pod was %+v", there)
	}
	if left := f.relay(); left != nil && left.DeletionTimestamp.IsZero() {
		t.Error("the pod is left")
	}
	if is := f.get("balanced"); is.Spec.ClusterIP != was.Spec.ClusterIP || is.Annotations[v1alpha1.AnnotationOldIP] != "" {
		t.Errorf("the Service was touched: %+v", is)
	}
}

// TestLeftPodIsNamed by status, and removed by rollback.
func TestLeftPodIsNamed(t *testing.T) {
	f := setup(t, throughKubeadm)
	f.apiServerOfKubeadm("cp1")
	server.Namespace(t, v1alpha1.SystemNamespace)
	f.must(server.Create(t.Context(), f.job.relay().Pod("cp1")))
	doc, err := f.job.Status(t.Context())
	f.must(err)
	var text strings.Builder
	for _, b := range doc.Text {
		text.WriteString(strings.Join(b.Lines, "\n"))
	}
	if want := "warning: pod replumb-system/etcd-relay on node cp1"; !strings.Contains(text.String(), want) {
		t.Errorf("status says %q, want %q", text.String(), want)
	}
	p, err := f.job.Look(t.Context())
	f.must(err)
	var removes bool
	for _, phase := range p.Rollback().Phases {
		for _, g := range phase.Groups {
			for _, s := range g.Steps {
				if s.ID() == "tidy/etcd" {
					removes = true
					f.must(s.Do(t.Context()))
				}
			}
		}
	}
	if left := f.relay(); !removes || left != nil && left.DeletionTimestamp.IsZero() {
		t.Error("the pod is left")
	}
}
