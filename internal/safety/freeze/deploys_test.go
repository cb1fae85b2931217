//go:build apiserver && long

package freeze

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
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
	step := &Deploys{Client: s, Migration: "to-mirror", Copies: true, Include: []string{"sh*", "kube-system"}, Exclude: []string{"kube-*"}}
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

// TestDeploysWhileTheNetworkChanges: a stranger's change is refused and says until when, what
// autoscalers do passes, and so do those that are allowed, objects that are left out, and what
// replumb has made itself. Each is admitted before the freeze, which is the control.
func TestDeploysWhileTheNetworkChanges(t *testing.T) {
	s := lazy.Get(t)
	s.Namespace(t, "shop")
	bridge := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop",
			Name:      "bridge",
			Labels:    map[string]string{v1alpha1.LabelRole: v1alpha1.RoleBridge},
		},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
	free := deployment("shop", "free")
	free.Labels["team"] = "ops"
	for _, o := range []client.Object{deployment("shop", "web"), free, bridge} {
		if err := s.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Delete(context.Background(), o) })
	}
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: "deployer", Groups: []string{"system:masters"}}
	deployer, err := cluster.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	image := func(c client.Client, name string) error {
		d := deployment("shop", name)
		d.Spec.Template.Spec.Containers[0].Image = "example.com/app:2"
		d.Labels = map[string]string{}
		if name == "free" {
			d.Labels["team"] = "ops"
		}
		return c.Update(t.Context(), d, client.DryRunAll, client.FieldOwner("kubectl-client-side-apply"))
	}
	scale := func() error {
		to := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 3}}
		return s.SubResource("scale").Update(t.Context(), deployment("shop", "web"), client.WithSubResourceBody(to))
	}
	all := map[string]struct {
		do     func() error
		denied bool
	}{
		"stranger":  {func() error { return image(s, "web") }, true},
		"scale":     {scale, false},
		"allowed":   {func() error { return image(deployer, "web") }, false},
		"left out":  {func() error { return image(s, "free") }, false},
		"a bridge":  {func() error { return s.Delete(t.Context(), bridge.DeepCopy(), client.DryRunAll) }, false},
		"a Service": {func() error { return s.Create(t.Context(), newService("shop", "new"), client.DryRunAll) }, true},
	}
	for name, test := range all {
		if err := test.do(); err != nil {
			t.Errorf("%s, before the freeze: %v", name, err)
		}
	}
	step := &Deploys{
		Client: s, Migration: "move", Allow: []string{"deployer"},
		Selector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "team", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"ops"}},
		}},
	}
	run(t, step)
	t.Cleanup(func() { _ = remove(context.Background(), s, DeploysName) })
	for name, test := range all {
		err := test.do()
		if denied(err, DeploysName) != test.denied || err != nil && !test.denied {
			t.Errorf("%s: denied is %v, want %v: %v", name, denied(err, DeploysName), test.denied, err)
		}
		if says := "migration move is changing the network of this cluster"; test.denied &&
			(!strings.Contains(err.Error(), says) || !strings.Contains(err.Error(), "until replumb finish or rollback move has ended")) {
			t.Errorf("%s: it says %v", name, err)
		}
	}
	other := (&Deploys{Client: s, Migration: "other"}).Undo()
	if err := other.Do(t.Context()); err != nil {
		t.Error(err)
	}
	if of, frozen, err := DeploysOf(t.Context(), s); of != "move" || !frozen || err != nil {
		t.Errorf("after another migration: frozen is %v, by %q, %v", frozen, of, err)
	}
	run(t, step.Undo())
	if err := image(s, "web"); err != nil {
		t.Errorf("after the freeze: %v", err)
	}
}

func newService(namespace, name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// custom is a kind that is no one's of Kubernetes.
type custom struct{ group, resource, kind string }

func (k custom) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.group, Version: "v1alpha1", Resource: k.resource}
}

// define has the API server serve a kind until the test ends.
func (k custom) define(t *testing.T, c dynamic.Interface) {
	t.Helper()
	defined := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	name := k.resource + "." + k.group
	_, err := defined.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{
			"name": name, "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, for a test"},
		},
		"spec": map[string]any{
			"group": k.group, "scope": "Namespaced",
			"names": map[string]any{"kind": k.kind, "plural": k.resource, "singular": strings.ToLower(k.kind), "listKind": k.kind + "List"},
			"versions": []any{map[string]any{
				"name": "v1alpha1", "served": true, "storage": true, "subresources": map[string]any{"status": map[string]any{}},
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
			}},
		},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = defined.Delete(context.Background(), name, metav1.DeleteOptions{}) })
}

func (k custom) object(name string, spec any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": k.gvr().GroupVersion().String(), "kind": k.kind, "metadata": map[string]any{"name": name, "namespace": "shop"},
	}}
	if spec != nil {
		o.Object["spec"] = spec
	}
	return o
}

// TestCustomKindsAreFrozen: Rollouts, routes of the Gateway API and kinds that are named, also
// where their definitions come after the freeze; what controllers write to them, and kinds that no
// one names, go on. Each is changed before the freeze, which is the control.
func TestCustomKindsAreFrozen(t *testing.T) {
	s := lazy.Get(t)
	s.Namespace(t, "shop")
	c, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		t.Fatal(err)
	}
	const gateway = "gateway.networking.k8s.io"
	kinds := []custom{
		{"argoproj.io", "rollouts", "Rollout"},
		{gateway, "httproutes", "HTTPRoute"},
		{gateway, "grpcroutes", "GRPCRoute"},
		{gateway, "tcproutes", "TCPRoute"},
		{gateway, "tlsroutes", "TLSRoute"},
		{gateway, "udproutes", "UDPRoute"},
		{"example.com", "kafkas", "Kafka"},
	}
	bare, free, late := custom{
		"example.com",
		"bares",
		"Bare",
	}, custom{
		"example.com",
		"others",
		"Other",
	}, custom{
		"example.com",
		"lates",
		"Late",
	}
	spec := map[string]any{"a": "b"}
	for _, k := range append(slices.Clone(kinds), bare, free) {
		k.define(t, c)
		o := k.object("cart", spec)
		if k == bare {
			o = k.object("cart", nil)
		}
		eventually(t, k.kind+" is served, and not frozen", func() bool {
			_, err := c.Resource(k.gvr()).Namespace("shop").Create(t.Context(), o, metav1.CreateOptions{})
			return err == nil
		})
	}
	step := &Deploys{Client: s, Migration: "to-mirror", More: []schema.GroupResource{
		{Group: "example.com", Resource: "kafkas"},
		{Group: "example.com", Resource: "bares"},
		{Group: "example.com", Resource: "lates"},
		{Group: "example.com", Resource: "absent"},
	}}
	run(t, step)
	t.Cleanup(func() { _ = remove(context.Background(), s, DeploysName) })

	do := func(k custom) (create, patch, remove, note, status error) {
		in := c.Resource(k.gvr()).Namespace("shop")
		dry := []string{metav1.DryRunAll}
		send := func(body string, sub ...string) error {
			_, err := in.Patch(
				t.Context(),
				"cart",
				types.MergePatchType,
				[]byte(body),
				metav1.PatchOptions{DryRun: dry, FieldManager: "helm"},
				sub...)
			return err
		}
		_, create = in.Create(t.Context(), k.object("new", spec), metav1.CreateOptions{DryRun: dry})
		patch, note = send(`{"spec":{"a":"c"}}`), send(`{"metadata":{"annotations":{"a":"b"}}}`)
		remove = in.Delete(t.Context(), "cart", metav1.DeleteOptions{DryRun: dry})
		return create, patch, remove, note, send(`{"status":{"a":"b"}}`, "status")
	}
	for _, k := range append(kinds, bare) {
		t.Run(k.kind, func(t *testing.T) {
			create, patch, remove, note, status := do(k)
			for what, err := range map[string]error{"creation": create, "spec": patch, "deletion": remove} {
				if !denied(err, DeploysName) || !strings.Contains(err.Error(), k.kind+" shop/") {
					t.Errorf("%s: %v", what, err)
				}
			}
			if note != nil || status != nil {
				t.Errorf("metadata: %v; status: %v", note, status)
			}
		})
	}
	if create, patch, remove, note, status := do(free); errors.Join(create, patch, remove, note, status) != nil {
		t.Errorf("a kind that is not named: %v", errors.Join(create, patch, remove, note, status))
	}
	late.define(t, c)
	eventually(t, "a definition that came late", func() bool {
		_, err := c.Resource(late.gvr()).
			Namespace("shop").
			Create(t.Context(), late.object("new", spec), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return denied(err, DeploysName)
	})
	run(t, step.Undo())
	if create, patch, remove, note, status := do(kinds[0]); errors.Join(create, patch, remove, note, status) != nil {
		t.Errorf("after the freeze: %v", errors.Join(create, patch, remove, note, status))
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
