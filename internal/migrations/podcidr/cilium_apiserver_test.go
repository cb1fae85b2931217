//go:build apiserver

package podcidr

import (
	"context"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/ciliumipam"
)

// behindCilium makes the cluster one whose ranges are of Cilium's operator, without pods of Cilium.
func (f *fixture) behindCilium() {
	f.Helper()
	free := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	crd := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "ciliumnodes.cilium.io"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "cilium.io", Scope: apiextensionsv1.ClusterScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "ciliumnodes", Singular: "ciliumnode", Kind: "CiliumNode", ListKind: "CiliumNodeList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v2", Served: true, Storage: true, Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &free},
			}},
		},
	}
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium-config"}, Data: map[string]string{
		ciliumipam.ModeKey: ciliumipam.ClusterPool, ciliumipam.PoolKey: newRange, ciliumipam.RoutingKey: "native",
	}}
	labels := map[string]string{"k8s-app": "cilium"}
	agents := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "cilium"}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"none": "none"}, Containers: []corev1.Container{{Name: "cilium-agent", Image: "cilium"}},
		}},
	}}
	for _, o := range []client.Object{crd, config, agents} {
		f.Must(server.Create(f.Context(), o))
		f.Cleanup(func() { _ = server.Delete(context.WithoutCancel(f.Context()), o) })
	}
	all := &unstructured.UnstructuredList{}
	kind := ciliumipam.GroupVersionKind()
	kind.Kind += "List"
	all.SetGroupVersionKind(kind)
	f.Until("CiliumNodes are known", func() bool { return server.List(f.Context(), all) == nil })
	for name, has := range map[string]string{"a": "10.244.0.0/24", "b": "10.244.1.0/24"} {
		n := &corev1.Node{}
		f.Must(server.Get(f.Context(), client.ObjectKey{Name: name}, n))
		f.Must(ciliumipam.Make(f.Context(), server, n, "", []string{has}))
	}
	f.Must(server.Delete(f.Context(), calico.Empty("IPPool", "default")))
}

// TestAWayBackComesFirst: a command finds the node that an earlier one was taking back when it
// ended, by what its Node says, and takes it back before anything else. Only apply stops there.
func TestAWayBackComesFirst(t *testing.T) {
	f := setup(t)
	f.behindCilium()
	if plan, err := f.job.Unfinished(t.Context(), v1alpha1.DesiredApplied); plan != nil || err != nil {
		t.Fatalf("with no node on its way back: %v, %v", plan, err)
	}
	n := &corev1.Node{}
	f.Must(server.Get(t.Context(), client.ObjectKey{Name: "a"}, n))
	f.Must(cordon.Patch(t.Context(), server, n, func(n *corev1.Node) {
		metav1.SetMetaDataAnnotation(&n.ObjectMeta, v1alpha1.AnnotationReturning, "its agent did not start")
	}))
	for to, last := range map[v1alpha1.DesiredState]string{v1alpha1.DesiredApplied: "returned/a", v1alpha1.DesiredRolledBack: "settle/a"} {
		plan, err := f.job.Unfinished(t.Context(), to)
		if err != nil || plan == nil {
			t.Fatalf("%s: %v, %v", to, plan, err)
		}
		steps := plan.Steps()
		if steps[0].ID() != "return/a" || steps[len(steps)-1].ID() != last || slices.ContainsFunc(steps, func(s engine.Step) bool { return s.ID() == "return/b" }) {
			t.Errorf("%s: from %s to %s", to, steps[0].ID(), steps[len(steps)-1].ID())
		}
	}
}
