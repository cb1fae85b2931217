//go:build apiserver && long

package podcidr

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

func TestThereAndFinished(t *testing.T) {
	f := setup(t)
	f.populate()
	f.Must(f.apply())
	f.allIn(newRange)
	st := f.again()
	if st.Phase != v1alpha1.PhaseMoved || st.Counts.Moved != 7 || st.Counts.Total != 7 || st.LastError != "" {
		t.Errorf("status after apply: %+v", st)
	}
	f.Must(f.apply()) // a second time changes nothing
	if n := len(f.ready("web")); n != 3 {
		t.Errorf("web has %d pods", n)
	}
	f.Must(f.finish())
	f.allIn(newRange)
	f.onlyPool(newRange)
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

// TestPrepareScalesAndPutsBack: the Deployment behind the cluster's DNS has a single pod.
func TestPrepareScalesAndPutsBack(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.PodCIDR.Prepare.Deployments = []string{"shop/web"} })
	d := f.Deployment("web", 2)
	asleep := f.Deployment("mailer", 0) // a mirror put it to sleep, and remembers how many pods it had
	f.Must(server.Patch(t.Context(), asleep, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+v1alpha1.AnnotationRunOnce+`":"true","`+v1alpha1.AnnotationReplicas+`":"3"}}}`))))
	f.Must(f.apply())
	f.in(newRange, "web", 3)
	f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	if d.Annotations[v1alpha1.AnnotationOneMore] != f.job.Spec.Name+"/2" {
		t.Errorf("not remembered: %v", d.Annotations)
	}
	f.Must(f.finish())
	f.Until("the scale to be put back", func() bool { return len(f.ready("web")) == 2 })
	d = &appsv1.Deployment{ObjectMeta: d.ObjectMeta}
	f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(d), d))
	if len(d.Annotations) > 1 { // deployment.kubernetes.io/revision is its controller's
		t.Errorf("left: %v", d.Annotations)
	}
	f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(asleep), asleep))
	if asleep.Annotations[v1alpha1.AnnotationReplicas] != "3" || *asleep.Spec.Replicas != 0 {
		t.Errorf("what a mirror remembers of its singleton is gone: %v, %d replicas", asleep.Annotations, *asleep.Spec.Replicas)
	}
}
