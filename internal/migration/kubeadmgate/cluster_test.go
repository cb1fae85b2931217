package kubeadmgate

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
)

func gatesOf(objects ...client.Object) *Gates {
	return &Gates{Cluster: &cluster.Cluster{WithWatch: fake.NewClientBuilder().WithObjects(objects...).Build()}, Migration: "m"}
}

// program is a static pod of the control plane as the API shows it.
func program(name, node string, ready bool, flags ...string) *corev1.Pod {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: name + "-" + node, UID: types.UID(name + node), Labels: map[string]string{"component": name},
		},
		Spec:   corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: name, Command: append([]string{name}, flags...)}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}}},
	}
}

func requireWait(t *testing.T, name string, err error, part string) {
	t.Helper()
	switch {
	case part == "" && err != nil:
		t.Errorf("%s: %v", name, err)
	case part != "" && (!engine.Retryable(err) || !strings.Contains(err.Error(), part)):
		t.Errorf("%s: the error is %v, want one about %q", name, err, part)
	}
}

// TestControlPlaneThatDoesNotAnswer: no server is restarted while another one is not ready.
func TestControlPlaneThatDoesNotAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		others bool
		want   string
	}{
		"all others answer": {true, ""},
		"one does not":      {false, "pod kube-apiserver-cp3 on node cp3 is not ready, and kube-apiserver on cp1 is not restarted before it is"},
	} {
		g := gatesOf(program("kube-apiserver", "cp1", false), program("kube-apiserver", "cp2", true), program("kube-apiserver", "cp3", tt.others))
		requireWait(t, name, g.othersReady("cp1", "kube-apiserver")(t.Context()), tt.want)
	}
}

func TestRunsWith(t *testing.T) {
	c := onnode.FlagChange{Program: "kube-controller-manager", From: map[string]string{"a": "1"}, To: map[string]string{"a": "2"}, AbsentIsRight: true}
	always := c
	always.AbsentIsRight = false
	for name, tt := range map[string]struct {
		change onnode.FlagChange
		pods   []client.Object
		want   string
	}{
		"it does":                {c, []client.Object{program(c.Program, "cp1", true, "--a=2")}, ""},
		"the former value":       {c, []client.Object{program(c.Program, "cp1", true, "--a=1")}, "kube-controller-manager on node cp1 is not seen to run with --a=2"},
		"without, which is fine": {c, []client.Object{program(c.Program, "cp1", true)}, ""},
		"without, which is not":  {always, []client.Object{program(c.Program, "cp1", true)}, "is not seen to run with --a=2"},
		"not ready":              {c, []client.Object{program(c.Program, "cp1", false, "--a=2")}, "pod kube-controller-manager-cp1 on node cp1 is not ready"},
		"on another node":        {c, []client.Object{program(c.Program, "cp2", true, "--a=2")}, "kube-controller-manager on node cp1 is not seen"},
	} {
		requireWait(t, name, gatesOf(tt.pods...).runsWith("cp1", tt.change)(t.Context()), tt.want)
	}
}

// TestKubeletBringsItsPodsBack: the next node has its turn when all that were ready are so again.
func TestKubeletBringsItsPodsBack(t *testing.T) {
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "w1"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}},
	}
	was, broken := program("web", "w1", true), program("broken", "w1", false)
	g := gatesOf(node, was, broken, program("web", "w2", false))
	pods := &readyPods{client: g.Cluster, node: "w1"}
	if err := pods.remember(t.Context()); err != nil {
		t.Fatal(err)
	}
	update := func(o client.Object) {
		t.Helper()
		if err := g.Cluster.Status().Update(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	requireWait(t, "as before", pods.again(t.Context()), "")
	was.Status.Conditions[0].Status = corev1.ConditionFalse
	update(was)
	requireWait(t, "a pod is away", pods.again(t.Context()), "pod web-w1 on node w1 is not ready")
	node.Status.Conditions[0].Status = corev1.ConditionUnknown
	update(node)
	requireWait(t, "the kubelet does not come back", pods.again(t.Context()), "node w1 is not ready")
	if err := g.Cluster.Delete(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	requireWait(t, "the node is gone", pods.again(t.Context()), "")
}

// TestConfigMapOfSomebodyElse is left as it is, and named.
func TestConfigMapOfSomebodyElse(t *testing.T) {
	for name, tt := range map[string]struct{ text, part string }{
		"managed by Ansible": {"# Ansible managed\nkind: ClusterConfiguration\nnetworking: {serviceSubnet: 10.96.0.0/16}\n", "something else manages it"},
		"without a range":    {"kind: ClusterConfiguration\n", "has no networking.serviceSubnet"},
		"of another kind":    {"kind: InitConfiguration\n", "is of kind"},
	} {
		config := &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "kubeadm-config"}, Data: map[string]string{"ClusterConfiguration": tt.text},
		}
		g := gatesOf(config)
		err := lookAt(t.Context(), g.ServiceSubnet("172.24.0.0/16"))
		if err == nil || engine.Retryable(err) || !strings.Contains(err.Error(), "ConfigMap kube-system/kubeadm-config") ||
			!strings.Contains(err.Error(), tt.part) || fault.Advice(err) == "" {
			t.Errorf("%s: the error is %v, with the hint %q", name, err, fault.Advice(err))
		}
		now := &corev1.ConfigMap{}
		if err := g.Cluster.Get(t.Context(), client.ObjectKeyFromObject(config), now); err != nil || now.Data["ClusterConfiguration"] != tt.text {
			t.Errorf("%s: it was changed: %v", name, err)
		}
	}
}

func lookAt(ctx context.Context, s engine.Step) error {
	_, err := s.State(ctx)
	if err == nil {
		err = s.Do(ctx)
	}
	return err
}
