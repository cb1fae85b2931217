//go:build apiserver && programs

package mirror

import (
	"context"
	"errors"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestCompared: a quota, a host port and a definition of the target that copies would come up
// against are found before anything is frozen or copied.
func TestCompared(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.Mirror.Copy.Existing = v1alpha1.ExistingKeep })
	f.must(client.IgnoreAlreadyExists(f.target.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})))
	f.temporary(f.target, &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "small"},
		Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{
			corev1.ResourcePods: resource.MustParse("2"), corev1.ResourceServices: resource.MustParse("9"), "count/configmaps": resource.MustParse("0"),
		}},
	})
	f.temporary(f.source, listening("shop", "edge"))
	f.temporary(f.target, listening("default", "proxy"))
	eventually(t, "a pod of proxy", func() error {
		pods := &corev1.PodList{}
		if err := f.target.List(t.Context(), pods, client.InNamespace("default"), client.MatchingLabels{"app": "proxy"}); err != nil || len(pods.Items) > 0 {
			return err
		}
		return errors.New("there is none yet")
	})
	f.define(f.source, "gadgets", "v1", "size", "color")
	f.define(f.target, "gadgets", "v1", "size")
	f.define(f.source, "widgets", "v1", "size")
	f.define(f.target, "widgets", "v1beta1", "size")
	objects, err := dynamic.NewForConfig(f.source.Config)
	f.must(err)
	for _, kind := range []string{"Gadget", "Widget"} {
		o := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": kind, "metadata": map[string]any{"namespace": "shop", "name": "a"},
			"spec": map[string]any{"size": "1"},
		}}
		if kind == "Gadget" {
			o.Object["spec"].(map[string]any)["color"] = "red"
		}
		of := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: strings.ToLower(kind) + "s"}
		eventually(t, kind, func() error {
			_, err := objects.Resource(of).Namespace("shop").Create(t.Context(), o.DeepCopy(), metav1.CreateOptions{})
			return err
		})
	}
	f.operator = f.source.Cluster // its rights are by the kinds that there were
	f.with(f.job.Migration)
	p, err := f.job.Look(t.Context())
	f.must(err)
	for _, want := range [][2]string{
		{"RP4112", "ResourceQuota shop/small of the target allows pods: 2, and copies need 3"},
		{"RP4112", "allows count/configmaps: 0, and copies need"},
		{"RP4113", "host port 8443/TCP of daemonsets.apps shop/edge is taken on 1 of 1 nodes of the target: it is daemonsets.apps default/proxy's"},
		{"RP4114", "gadgets.example.com shop/a has spec.color, which v1 of the target does not know"},
		{"RP4114", "widgets.example.com is stored as v1 in the source, and the target serves v1beta1"},
	} {
		if !migrationtest.Says(p.Findings, want[0], want[1]) {
			t.Errorf("no %s says %q", want[0], want[1])
		}
	}
	if migrationtest.Says(p.Findings, "RP4112", "services") {
		t.Error("the quota of services is large enough")
	}
	if t.Failed() {
		var all []string
		for _, x := range p.Findings {
			all = append(all, x.Code+" "+x.Message)
		}
		t.Logf("findings:\n%s", strings.Join(all, "\n"))
	}
}

// temporary makes an object for as long as the test takes.
func (f *fixture) temporary(s *apitest.Server, o client.Object) {
	f.Helper()
	f.must(s.Create(f.Context(), o))
	f.Cleanup(func() { f.must(client.IgnoreNotFound(s.Delete(context.Background(), o))) })
}

func listening(namespace, name string) *appsv1.DaemonSet {
	labels := map[string]string{"app": name}
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name: "c", Image: "registry.example.com/edge:1", Ports: []corev1.ContainerPort{{ContainerPort: 443, HostPort: 8443}},
		}}}},
	}}
}

// define makes a definition of example.com whose spec has these fields.
func (f *fixture) define(s *apitest.Server, plural, version string, fields ...string) {
	f.Helper()
	properties := map[string]any{}
	for _, field := range fields {
		properties[field] = map[string]any{"type": "string"}
	}
	singular := strings.TrimSuffix(plural, "s")
	kind := strings.ToUpper(singular[:1]) + singular[1:]
	f.temporary(s, &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": map[string]any{"name": plural + ".example.com"},
		"spec": map[string]any{
			"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": plural, "singular": singular, "kind": kind},
			"versions": []any{map[string]any{
				"name": version, "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{
					"spec": map[string]any{"type": "object", "properties": properties},
				}}},
			}},
		},
	}})
}
