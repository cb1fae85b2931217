package controlplane_test

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/internal/kube/controlplane"
)

func pod(namespace, name string, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(name), Labels: labels,
		Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "hash"},
	}}
}

func TestPods(t *testing.T) {
	c := fake.NewClientBuilder().WithObjects(
		pod("kube-system", "kubeadm", map[string]string{"component": "kube-apiserver", "tier": "control-plane"}),
		pod("kube-system", "kops", map[string]string{"k8s-app": "kube-apiserver"}),
		pod("kube-system", "both", map[string]string{"component": "kube-apiserver", "k8s-app": "kube-apiserver"}),
		pod("kube-system", "manager", map[string]string{"k8s-app": "kube-controller-manager"}),
		pod("kube-system", "dns", map[string]string{"k8s-app": "kube-dns"}),
		pod("shop", "forged", map[string]string{"component": "kube-apiserver"}), // a tenant's
	).Build()
	for component, want := range map[controlplane.Component][]string{
		controlplane.APIServer: {"both", "kops", "kubeadm"}, controlplane.ControllerManager: {"manager"},
	} {
		pods, err := component.Pods(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for i := range pods {
			got = append(got, pods[i].Name)
			if !component.IsStatic(&pods[i]) {
				t.Errorf("%s is no static pod of %s", pods[i].Name, component)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("%s has %v, want %v", component, got, want)
		}
	}
	plain := pod("kube-system", "plain", map[string]string{"component": "kube-apiserver"})
	plain.Annotations = nil
	if controlplane.APIServer.IsStatic(plain) {
		t.Error("a pod that no kubelet runs from a file is taken for a static one")
	}
}
