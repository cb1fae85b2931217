package overlapset

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/network/overlap"
)

// TestState: what people read of the replicas, by what these have written.
func TestState(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	lease := func(name, holder string, at, inStep time.Time, problem string) coordinationv1.Lease {
		return coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: overlap.Labels("m"), Annotations: map[string]string{
				v1alpha1.AnnotationInStep: inStep.Format(time.RFC3339Nano), v1alpha1.AnnotationProblem: problem,
			}},
			Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: at}},
		}
	}
	leads := lease(overlap.LeaseName, "overlap-a", ago(1), now, "")
	for _, tt := range []struct {
		name    string
		image   string
		missing bool
		leases  []coordinationv1.Lease
		want    string
		well    bool
	}{
		{"all well", "i", false, []coordinationv1.Lease{
			leads, lease("overlap-a", "overlap-a", ago(1), ago(3), ""), lease("overlap-b", "overlap-b", ago(1), ago(5), ""),
		}, "2 of 2 replicas alive, leader overlap-a, last in step 3s ago", true},
		{"one is lost", "i", false, []coordinationv1.Lease{
			leads, lease("overlap-a", "overlap-a", ago(1), ago(1), ""), lease("overlap-b", "overlap-b", ago(16), ago(16), ""),
		}, "1 of 2 replicas alive, leader overlap-a, last in step 1s ago", true},
		{
			"out of step", "i", false,
			[]coordinationv1.Lease{leads, lease("overlap-a", "overlap-a", ago(1), ago(60), "forbidden")},
			"1 of 2 replicas alive, leader overlap-a, last in step 1m0s ago: forbidden", false,
		},
		{
			"all lost", "i", false,
			[]coordinationv1.Lease{lease("overlap-b", "overlap-b", ago(16), ago(16), "")},
			"0 of 2 replicas alive, never in step", false,
		},
		{"removed", "i", true, nil, "deployment overlap is not there", false},
		{"disabled", "", true, nil, "bridges are kept in step only while a command runs (spec.serviceCIDR.follower)", false},
	} {
		s := &Set{Image: pull.Image{Name: tt.image}, Now: func() time.Time { return now }}
		st := (&view{leases: tt.leases}).state(!tt.missing, s)
		if st.String() != tt.want || st.Well() != tt.well {
			t.Errorf("%s: %q, well %v", tt.name, st, st.Well())
		}
	}
}
