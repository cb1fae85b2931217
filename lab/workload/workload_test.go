package workload

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/replumb/replumb/internal/verify/probe"
)

func TestServicesSelectTheirPods(t *testing.T) {
	for _, echo := range Shop("shop") {
		pods := labels.Set(echo.Deployment().Spec.Template.Labels)
		if !labels.SelectorFromSet(echo.Service().Spec.Selector).Matches(pods) {
			t.Errorf("Service %s does not select the pods of its Deployment", echo.Name)
		}
		for _, object := range FurtherServices("shop", 3) {
			service := object.(*corev1.Service)
			if !labels.SelectorFromSet(service.Spec.Selector).Matches(pods) {
				t.Errorf("Service %s does not select the pods of %s", service.Name, echo.Name)
			}
		}
	}
}

func TestIngressSelectsItsPods(t *testing.T) {
	for _, object := range Ingress(netip.Addr{}) {
		var selector labels.Selector
		switch o := object.(type) {
		case *corev1.Service:
			selector = labels.SelectorFromSet(o.Spec.Selector)
		case *policyv1.PodDisruptionBudget:
			selector, _ = metav1.LabelSelectorAsSelector(o.Spec.Selector)
		case *appsv1.Deployment:
			selector, _ = metav1.LabelSelectorAsSelector(o.Spec.Selector)
		default:
			continue
		}
		if pods := labels.Set(ingressDeployment(netip.Addr{}).Spec.Template.Labels); !selector.Matches(pods) {
			t.Errorf("%s does not select %v", describe(object), pods)
		}
	}
}

func TestClientConfigurationCanBeRead(t *testing.T) {
	pod, err := Client("shop", "client-a", "a", probe.Config{Targets: []probe.Target{{
		Name: "cart", Kind: probe.HTTP, Address: "cart:80", Timeout: probe.Duration(time.Second),
		ExpectClientAddress: probe.Self,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	config, err := probe.ParseConfig([]byte(pod.Spec.Containers[0].Env[0].Value))
	if err != nil {
		t.Fatal(err)
	}
	if config, err = config.Resolve("10.244.0.9"); err != nil || config.Targets[0].ExpectClientAddress != "10.244.0.9" {
		t.Errorf("config = %+v, %v", config, err)
	}
	if pod.Spec.NodeName != "a" {
		t.Errorf("node = %q", pod.Spec.NodeName)
	}
}

func TestEnsureLeavesWhatIsThere(t *testing.T) {
	client := fake.NewClientset()
	objects := append([]runtime.Object{Namespace("shop")}, Shop("shop")[0].Objects()...)
	for range 2 {
		if err := Ensure(t.Context(), client, objects...); err != nil {
			t.Fatal(err)
		}
	}
	err := Ensure(t.Context(), client, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x"}})
	if err == nil || !strings.Contains(err.Error(), "Secret shop/x") {
		t.Errorf("error = %v", err)
	}
}

func TestWaitReadyWatches(t *testing.T) {
	client := fake.NewClientset()
	deployment := Shop("shop")[0].Deployment()
	if err := Ensure(t.Context(), client, deployment); err != nil {
		t.Fatal(err)
	}
	go func() {
		ready := deployment.DeepCopy()
		ready.Status = appsv1.DeploymentStatus{AvailableReplicas: 2}
		if _, err := client.AppsV1().Deployments("shop").UpdateStatus(t.Context(), ready, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	}()
	if err := WaitReady(t.Context(), client, 20*time.Second, deployment); err != nil {
		t.Fatal(err)
	}
}

func TestWaitReadySaysWhatFor(t *testing.T) {
	stuck := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front-1", Labels: Shop("shop")[0].labels()},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}},
		}}},
	}
	failed := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "client-a"},
		Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}},
		}}},
	}
	deployment := Shop("shop")[0].Deployment()
	client := fake.NewClientset(stuck, failed, deployment)
	tests := []struct {
		object runtime.Object
		want   string
		is     error
	}{
		{
			deployment, "wait for Deployment shop/front: 0 of 2 replicas available; pod front-1: ErrImageNeverPull",
			context.DeadlineExceeded,
		},
		{failed, "wait for Pod shop/client-a: exit code 1: it has ended", nil},
	}
	for _, tt := range tests {
		err := WaitReady(t.Context(), client, time.Second, tt.object)
		if err == nil || !strings.HasPrefix(err.Error(), tt.want) || (tt.is != nil && !errors.Is(err, tt.is)) {
			t.Errorf("error = %v, want %s", err, tt.want)
		}
	}
}
