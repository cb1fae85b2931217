//go:build apiserver && programs && long

package mirror

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestNamespaceStaysForOthers keeps the namespace, and the backups in it, of a migration that goes
// on: the switch of the network that the mirror was for can be taken back after the mirror has
// finished.
func TestNamespaceStaysForOthers(t *testing.T) {
	f := setup(t)
	f.must(f.run(0, f.apply))
	other := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "network"},
		Spec:       v1alpha1.MigrationSpec{CNI: &v1alpha1.CNISpec{To: v1alpha1.Calico, Manifests: []string{"x"}}},
	}
	f.must(f.source.Create(t.Context(), other))
	other.Status.Phase = v1alpha1.PhaseMoved
	f.must(f.source.Status().Update(t.Context(), other))
	f.must(f.run(0, f.finish))
	ns := &corev1.Namespace{}
	f.must(f.source.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns))
	if !ns.DeletionTimestamp.IsZero() {
		t.Error("the namespace is being deleted, with what the other migration keeps there")
	}
}
