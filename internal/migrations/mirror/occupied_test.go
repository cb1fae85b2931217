//go:build apiserver && programs

package mirror

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestOccupied: a node port that another Service of the target has is found before anything is
// frozen or copied, and so is a claim that nothing makes a volume for.
func TestOccupied(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Spec.Mirror.Copy.Volumes = v1alpha1.VolumesCopy
		m.Spec.Mirror.Copy.VolumeAction = &v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: []string{"/bin/true"}}}
	})
	port := func(namespace, name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 443, NodePort: 31443}},
		}}
	}
	other := port("default", "other")
	f.must(f.source.Create(t.Context(), port("shop", "gate")))
	f.must(f.target.Create(t.Context(), other))
	defer func() { f.must(f.target.Delete(t.Context(), other)) }()
	share := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "share"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, StorageClassName: ptr.To(""), VolumeName: "nfs-share",
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}
	f.must(f.source.Create(t.Context(), share))
	defer func() {
		f.must(f.source.Get(t.Context(), client.ObjectKeyFromObject(share), share))
		share.Finalizers = nil
		f.must(f.source.Update(t.Context(), share))
		f.must(client.IgnoreNotFound(f.source.Delete(t.Context(), share)))
	}()
	p, err := f.job.Look(t.Context())
	f.must(err)
	if !migrationtest.Says(p.Findings, "RP4111", "node port 31443 of shop/gate is default/other's in the target") ||
		!migrationtest.Says(p.Findings, "RP4110", "shop/share has no storage class") {
		var all []string
		for _, x := range p.Findings {
			all = append(all, x.Code+" "+x.Message)
		}
		t.Errorf("findings:\n%s", strings.Join(all, "\n"))
	}
}
