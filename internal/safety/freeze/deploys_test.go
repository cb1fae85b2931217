//go:build apiserver

package freeze

import (
	"context"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/testing/apitest"
)

func deployment(namespace, name string) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{}},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "example.com/app:1"}}},
			},
		},
	}
}

// TestDeploysAreFrozen sees who may still change what, while a cluster is copied.
func TestDeploysAreFrozen(t *testing.T) {
	s := lazy.Get(t)
	for _, ns := range []string{"shop", "tools"} {
		s.Namespace(t, ns)
	}
	var made []client.Object
	t.Cleanup(func() {
		for _, d := range made {
			_ = client.IgnoreNotFound(s.Delete(context.Background(), d))
		}
	})
	for _, d := range []*appsv1.Deployment{deployment("shop", "cart"), deployment("tools", "ci")} {
		if err := s.Create(t.Context(), d); err != nil {
			t.Fatal(err)
		}
		made = append(made, d)
	}
	step := &Deploys{Client: s, Migration: "to-mirror", Include: []string{"sh*", "kube-system"}, Exclude: []string{"kube-*"}}
	run(t, step)
	t.Cleanup(func() { _ = remove(context.Background(), s, DeploysName) })

	scaled := func(c client.Client, namespace, name, manager string, labels map[string]string) error {
		d := deployment(namespace, name)
		d.Spec.Replicas, d.Labels = ptr.To[int32](3), labels
		return c.Update(t.Context(), d, client.DryRunAll, client.FieldOwner(manager))
	}
	child := deployment("shop", "child")
	child.OwnerReferences = []metav1.OwnerReference{{
		APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "00000000-0000-4000-8000-000000000000", Controller: ptr.To(true),
	}}
	for name, test := range map[string]struct {
		do     func() error
		denied bool
	}{
		"spec":            {func() error { return scaled(s, "shop", "cart", "helm", nil) }, true},
		"creation":        {func() error { return s.Create(t.Context(), deployment("shop", "new"), client.DryRunAll) }, true},
		"deletion":        {func() error { return s.Delete(t.Context(), deployment("shop", "cart"), client.DryRunAll) }, true},
		"replumb":         {func() error { return scaled(s, "shop", "cart", v1alpha1.FieldManager, nil) }, false},
		"other namespace": {func() error { return scaled(s, "tools", "ci", "helm", nil) }, false},
		"controller":      {func() error { return scaled(as(t, s), "shop", "cart", "kcm", nil) }, false},
		"made by one":     {func() error { return s.Create(t.Context(), child, client.DryRunAll) }, false},
		"glass broken": {func() error {
			return scaled(s, "shop", "cart", "helm", map[string]string{v1alpha1.LabelBreakGlass: "true"})
		}, false},
		"a ConfigMap": {func() error {
			return s.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "x"}}, client.DryRunAll)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.do()
			if denied(err, DeploysName) != test.denied || err != nil && !apierrors.IsForbidden(err) {
				t.Errorf("denied is %v, want %v: %v", denied(err, DeploysName), test.denied, err)
			}
			if test.denied && !strings.Contains(err.Error(), "migration to-mirror is copying this cluster") {
				t.Errorf("it says %v", err)
			}
		})
	}
	run(t, step.Undo())
	if err := scaled(s, "shop", "cart", "helm", nil); err != nil {
		t.Errorf("after the freeze: %v", err)
	}
}

// as is the controller manager.
func as(t *testing.T, s *apitest.Server) client.Client {
	t.Helper()
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "system:kube-controller-manager", Groups: []string{"system:masters"}}
	c, err := cluster.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
