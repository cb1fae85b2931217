//go:build apiserver && long

package podcidr

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// brief has gates wait for a moment only.
func brief(m *v1alpha1.Migration) {
	m.Spec.PodCIDR.Nodes.GateWait = &metav1.Duration{Duration: time.Second}
}

// mark has all nodes say who made the cluster.
func (f *fixture) mark(patch string) {
	f.Helper()
	for _, name := range []string{"a", "b"} {
		f.merge(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, patch)
	}
}

// answer annotates the Migration.
func (f *fixture) answer(value string) {
	f.Helper()
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}}
	f.merge(m, `{"metadata":{"annotations":{"`+v1alpha1.AnnotationInstaller+`":"`+value+`"}}}`)
	f.again()
}

// TestKOpsIsConfirmed: before any pod has an address that nodes of kOps would masquerade, and
// before the old range is forgotten.
func TestKOpsIsConfirmed(t *testing.T) {
	f := setup(t, brief)
	f.mark(`{"metadata":{"labels":{"kops.k8s.io/instancegroup":"nodes"}}}`)
	f.Deployment("web", 3)

	f.Fails(f.apply(), "replumb.dev/installer=Ready")
	f.in(oldRange, "web", 3)
	f.onlyPool(oldRange)
	f.answer("Ready")
	f.Must(f.apply())
	f.in(newRange, "web", 3)

	f.Fails(f.finish(), "replumb.dev/installer=Moved")
	if st := f.again(); st.PointOfNoReturnPassed {
		t.Errorf("status: %+v", st)
	}
	f.answer("Moved")
	f.Must(f.finish())
	f.onlyPool(newRange)
}

// TestKubeadmIsRead: what kubeadm has is in the cluster, and no word is taken for it.
func TestKubeadmIsRead(t *testing.T) {
	f := setup(t, brief)
	f.mark(`{"metadata":{"annotations":{"kubeadm.alpha.kubernetes.io/cri-socket":"unix:///run/containerd/containerd.sock"}}}`)
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"},
		Data:       map[string]string{"ClusterConfiguration": "networking: {podSubnet: " + oldRange + "}\n"},
	}
	f.Must(server.Create(t.Context(), config))
	t.Cleanup(func() { f.Must(client.IgnoreNotFound(server.Delete(context.Background(), config))) })
	f.Deployment("web", 3)
	f.Must(f.apply())
	f.in(newRange, "web", 3)

	f.answer("Moved")
	guide := ""
	f.runner.Sink = func(e engine.Event) {
		f.take(e)
		guide += e.Guide
	}
	f.Fails(f.finish(), "networking.podSubnet in configmap kube-system/kubeadm-config is "+oldRange)
	if !strings.Contains(guide, "kubectl -n kube-system edit configmap kubeadm-config") {
		t.Errorf("the gate says %q", guide)
	}
	if st := f.again(); st.PointOfNoReturnPassed {
		t.Errorf("status: %+v", st)
	}
	// A range that a controller manager has given a Node outlasts the move, since Calico does not
	// go by it.
	f.merge(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}, `{"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]}}`)
	f.again()
	const moved = "kind: ClusterConfiguration\nnetworking: {podSubnet: '" + newRange + ",fd00:10::/48'}\n"
	config.Data["ClusterConfiguration"] = moved
	f.Must(server.Update(t.Context(), config))
	guide = ""
	f.Fails(f.finish(), "--cluster-cidr="+newRange+",fd00:10::/48, which does not start: node a has 10.244.0.0/24")
	if !strings.Contains(guide, `{name: allocate-node-cidrs, value: "false"}`) {
		t.Errorf("the gate says %q", guide)
	}
	config.Data["ClusterConfiguration"] = moved + "controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: \"false\"}]}\n"
	f.Must(server.Update(t.Context(), config))
	f.Must(f.finish())
	f.onlyPool(newRange)
}

// TestClusterAPIIsSeen: what people write into kubeadm's configuration lasts until the control
// plane, which has another, makes its next machine.
func TestClusterAPIIsSeen(t *testing.T) {
	f := setup(t, brief)
	f.mark(`{"metadata":{"annotations":{"cluster.x-k8s.io/machine":"m-1"}},"spec":{"podCIDR":"10.244.0.0/24","podCIDRs":["10.244.0.0/24"]}}`)
	config := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"},
		Data: map[string]string{"ClusterConfiguration": "kind: ClusterConfiguration\nnetworking: {podSubnet: " + newRange + "}\n" +
			"controllerManager: {extraArgs: [{name: allocate-node-cidrs, value: \"false\"}]}\n"},
	}
	f.Must(server.Create(t.Context(), config))
	t.Cleanup(func() { f.Must(client.IgnoreNotFound(server.Delete(context.Background(), config))) })
	manager := f.manager("--allocate-node-cidrs=true")
	f.Deployment("web", 3)
	f.Must(f.apply())

	guide := ""
	f.runner.Sink = func(e engine.Event) {
		f.take(e)
		guide += e.Guide
	}
	f.Fails(f.finish(), manager+" still runs with --allocate-node-cidrs=true")
	if !strings.Contains(guide, "clusterConfiguration of the KubeadmControlPlane") {
		t.Errorf("the gate says %q", guide)
	}
	if st := f.again(); st.PointOfNoReturnPassed {
		t.Errorf("status: %+v", st)
	}
	f.manager("--allocate-node-cidrs=false")
	f.Must(f.finish())
	f.onlyPool(newRange)
}

// manager is a controller manager that runs with a flag, and the only one.
func (f *fixture) manager(flag string) string {
	f.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: "kube-controller-manager-a", Labels: map[string]string{"component": "kube-controller-manager"},
		},
		Spec: corev1.PodSpec{NodeName: "a", HostNetwork: true, Containers: []corev1.Container{{
			Name: "kube-controller-manager", Image: "i", Command: []string{"kube-controller-manager", flag},
		}}},
	}
	f.Must(client.IgnoreNotFound(server.Delete(f.Context(), p.DeepCopy(), client.GracePeriodSeconds(0))))
	f.Must(server.Create(f.Context(), p))
	f.Cleanup(func() { _ = server.Delete(context.Background(), p, client.GracePeriodSeconds(0)) })
	ready := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":"True"}]}}`))
	f.Must(server.Status().Patch(f.Context(), p.DeepCopy(), ready))
	return p.Namespace + "/" + p.Name
}
