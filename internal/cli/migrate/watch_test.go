package migrate

import (
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// TestCountsAgree: status, status --watch and ui count the same objects, whatever was recorded.
func TestCountsAgree(t *testing.T) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, coordinationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	m.Status = v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseApplying, Counts: v1alpha1.Counts{Total: 9, Moved: 9}}
	app := command.New("replumb", nil, &strings.Builder{}, &strings.Builder{}, command.Build{})
	app.Kinds = sixKinds()
	o := &source{App: app}
	c := &command.Connection{Cluster: &cluster.Cluster{WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(m).Build()}}
	j, err := o.silentJob(c, m)
	if err != nil {
		t.Fatal(err)
	}
	page, err := o.statusOf(t.Context(), c, j)
	if err != nil {
		t.Fatal(err)
	}
	shown := &shownMigration{source: o, watch: &watch{source: o, c: c, name: "c"}}
	v, _, err := shown.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if v.Done != page.Counts.Moved || v.Total != page.Counts.Total || v.Done != 1 || v.Total != 7 || v.Next != page.Next {
		t.Errorf("ui has %d of %d and next %q, status %+v and %q", v.Done, v.Total, v.Next, page.Counts, page.Next)
	}
}
