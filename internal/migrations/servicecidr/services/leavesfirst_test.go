package services

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
)

// TestLeavesFirst: pods that take datagrams leave their Services before they end, unless their
// Deployment has no room for one more.
func TestLeavesFirst(t *testing.T) {
	app := map[string]string{"app": "dns"}
	service := func(namespace string, protocol corev1.Protocol) *Entry {
		return &Entry{Service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "dns"},
			Spec:       corev1.ServiceSpec{Selector: app, Ports: []corev1.ServicePort{{Port: 53, Protocol: protocol}}},
		}}
	}
	none := intstr.FromInt32(0)
	full := appsv1.DeploymentStrategy{RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &none}}
	udp, tcp := service("shop", corev1.ProtocolUDP), service("shop", corev1.ProtocolTCP)
	for name, tt := range map[string]struct {
		policy   v1alpha1.LeaveFirstPolicy
		service  *Entry
		strategy appsv1.DeploymentStrategy
		want     bool
	}{
		"datagrams":           {v1alpha1.LeaveFirstUDP, udp, appsv1.DeploymentStrategy{}, true},
		"connections":         {v1alpha1.LeaveFirstUDP, tcp, appsv1.DeploymentStrategy{}, false},
		"all of them":         {v1alpha1.LeaveFirstAll, tcp, appsv1.DeploymentStrategy{}, true},
		"another namespace's": {v1alpha1.LeaveFirstAll, service("other", corev1.ProtocolUDP), appsv1.DeploymentStrategy{}, false},
		"not wanted":          {v1alpha1.LeaveFirstNone, udp, appsv1.DeploymentStrategy{}, false},
		"no room":             {v1alpha1.LeaveFirstUDP, udp, full, false},
	} {
		s := &Inventory{Spec: Spec{Refresh: v1alpha1.RefreshSpec{LeaveFirst: tt.policy}}, Stays: []*Entry{tt.service}}
		state := &rollout.State{Deployments: []appsv1.Deployment{{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "dns", UID: "uid"}, Spec: appsv1.DeploymentSpec{Strategy: tt.strategy},
		}}}
		w := &rollout.Workload{Kind: rollout.KindDeployment, Namespace: "shop", Name: "dns", UID: "uid", PodLabels: app}
		if got := NewByWorkload(s, state).LeavesFirst(w); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
