//go:build apiserver

package agentset

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestRightsSuffice: a user with the rights that are asked for, and no others, puts agents there and takes them away.
func TestRightsSuffice(t *testing.T) {
	f := setup(t)
	f.migration("m", v1alpha1.PhaseApplying)
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "user"}}
	for _, r := range Rights() {
		name := r.Resource
		if r.Subresource != "" {
			name += "/" + r.Subresource
		}
		role.Rules = append(role.Rules, rbacv1.PolicyRule{APIGroups: []string{r.Group}, Resources: []string{name}, Verbs: []string{r.Verb}})
	}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "user"},
		Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "user"}},
	}
	f.must(server.Create(t.Context(), role))
	f.must(server.Create(t.Context(), binding))
	t.Cleanup(func() {
		_ = server.Delete(t.Context(), role)
		_ = server.Delete(t.Context(), binding)
	})
	f.set.Cluster = f.as("user")
	_, err := f.install(f.set)
	f.must(err)
	_, err = f.remove(f.set)
	f.must(err)
}

// TestAgentsMayReport: they see what they watch, write their reports, and nothing else.
func TestAgentsMayReport(t *testing.T) {
	f := setup(t)
	f.change(func() { f.mute = []string{"a", "b"} })
	f.migration("m", v1alpha1.PhaseApplying)
	for _, g := range f.set.Install()[:2] {
		for _, step := range g.Steps {
			f.must(engine.Drive(t.Context(), step))
		}
	}
	c := f.as("system:serviceaccount:" + v1alpha1.SystemNamespace + ":" + account)
	for _, list := range []client.ObjectList{&corev1.ServiceList{}, &corev1.PodList{}, &v1alpha1.MigrationList{}} {
		f.must(c.List(t.Context(), list))
		w, err := c.Watch(t.Context(), list)
		f.must(err)
		w.Stop()
	}
	r := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": "NodeReport",
		"metadata": map[string]any{"name": "a", "labels": map[string]any{v1alpha1.LabelMigration: "m"}},
	}}
	as := client.FieldOwner("replumb-agent-host")
	f.must(c.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(r.DeepCopy()), as))
	r.Object["status"] = map[string]any{"agents": []any{map[string]any{
		"origin": "Host", "instance": "x", "sequence": int64(1), "reportedAt": "2026-01-02T03:04:05.000000Z",
	}}}
	f.must(c.Status().Apply(t.Context(), client.ApplyConfigurationFromUnstructured(r), as))
	for _, list := range []client.ObjectList{&corev1.SecretList{}, &corev1.NodeList{}} {
		if err := c.List(t.Context(), list); !apierrors.IsForbidden(err) {
			t.Errorf("%T: %v", list, err)
		}
	}
	if err := c.Delete(t.Context(), &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a"}}); !apierrors.IsForbidden(err) {
		t.Errorf("removing a report: %v", err)
	}
}
