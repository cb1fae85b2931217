//go:build apiserver && long

package nodes

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

func TestThereAndFinished(t *testing.T) {
	f := setup(t)
	svc := f.populate()
	port := svc.Spec.HealthCheckNodePort
	f.Must(f.apply())
	f.allOn("c d")
	if got := f.nodes(); got != "c d" {
		t.Errorf("nodes: %s", got)
	}
	st := f.again()
	if st.Phase != v1alpha1.PhaseMoved || st.Counts.Moved != 2 || st.Counts.Total != 2 || st.LastError != "" {
		t.Errorf("status after apply: %+v", st)
	}
	f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(svc), svc))
	if !local(svc) || svc.Spec.HealthCheckNodePort != port || svc.Annotations[v1alpha1.AnnotationTrafficPolicy] != "" {
		t.Errorf("the policy was not put back: %+v, health-check port %d before", svc.Spec, port)
	}
	f.Must(f.apply()) // a second time changes nothing
	f.Must(f.finish())
	f.allOn("c d")
	if st := f.again(); st.Phase != v1alpha1.PhaseFinished || !st.PointOfNoReturnPassed {
		t.Errorf("status after finish: %+v", st)
	}
	err := server.Get(t.Context(), client.ObjectKey{Name: v1alpha1.SystemNamespace}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the namespace is left: %v", err)
	}
	f.Must(f.finish()) // a second time changes nothing
	f.Fails(f.apply(), "is finished")
	f.Fails(f.rollback(), "point of no return")
}
