//go:build apiserver && long

package htmlreport_test

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

func create(t *testing.T, s *apitest.Server, o client.Object) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		err := s.Create(ctx, o)
		return err == nil, client.IgnoreNotFound(err) // a definition that was installed just now
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Delete(context.Background(), o) })
}

// TestCollect reads everything from a real API server: the journal, annotations and who set them,
// reports of nodes, and versions.
func TestCollect(t *testing.T) {
	s := lazy.Get(t)
	if _, err := envtest.InstallCRDs(s.Config, envtest.CRDInstallOptions{Paths: []string{"../../../deploy/crds"}}); err != nil {
		t.Fatal(err)
	}
	s.Namespace(t, "shop")
	m := &v1alpha1.Migration{
		ObjectMeta: metav1.ObjectMeta{Name: "move"},
		Spec:       v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}},
	}
	create(t, s, m)
	w := journal.NewWriter(s, m, time.Now)
	w.Begin(journal.Describe(t.Context(), s.Cluster, m.Name, "replumb apply", "v0.9.0"))
	w.Event(engine.Event{Kind: engine.RunStarted, Time: time.Now()})
	w.Sample(journal.Sample{Probe: "host/name", Start: 1000, End: 1010, Sent: 50, P50: 900, P99: 1800})
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	patch := []byte(`{"metadata":{"annotations":{"replumb.dev/api-servers":"Repointed"}}}`)
	if err := s.Patch(
		t.Context(),
		m,
		client.RawPatch("application/merge-patch+json", patch),
		client.FieldOwner("kubectl-annotate"),
	); err != nil {
		t.Fatal(err)
	}
	create(t, s, &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: "shop", Name: "cart", Annotations: map[string]string{
			v1alpha1.LabelMigration: "move", v1alpha1.AnnotationOldIP: "172.24.9.9", v1alpha1.AnnotationTargetIP: "10.96.9.9",
			v1alpha1.AnnotationMovedAt: "2026-03-04T05:06:07Z",
		},
	}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.9.9", Ports: []corev1.ServicePort{{Port: 80}}}})
	create(t, s, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}})
	for name, of := range map[string]string{"node1": "move", "node2": "another"} {
		r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelMigration: of}}}
		create(t, s, r)
		r.Status.Clients = []v1alpha1.OldAddressClient{{
			Address: "172.24.9.9:80", Protocol: "TCP", Service: "shop/cart", Source: name, LastSeen: metav1.NowMicro(),
		}}
		if err := s.Status().Update(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Get(t.Context(), client.ObjectKeyFromObject(m), m); err != nil {
		t.Fatal(err)
	}
	in, err := htmlreport.Collect(t.Context(), s.Cluster, m, migrations.All().Of(m).Report(m))
	if err != nil {
		t.Fatal(err)
	}
	d := htmlreport.Build(in)
	if len(d.Runs) != 1 || d.Requests == nil || d.Requests.Sent != 50 || len(d.Notes) != 0 {
		t.Errorf("runs %+v, requests %+v, notes %q", d.Runs, d.Requests, d.Notes)
	}
	if len(d.Confirms) != 1 || d.Confirms[0].Manager != "kubectl-annotate" || d.Confirms[0].At == nil {
		t.Errorf("confirmed: %+v", d.Confirms)
	}
	if len(d.Services) != 1 || d.Services[0].State != "moved" || d.Services[0].At == nil {
		t.Errorf("services: %+v", d.Services)
	}
	if len(d.Users) != 1 || !strings.Contains(d.Users[0].Client, "node1") {
		t.Errorf("clients: %+v", d.Users)
	}
	if len(d.Versions) < 2 || d.Versions[0].Version != "v0.9.0" || !strings.HasPrefix(d.Versions[1].Version, "v1.") {
		t.Errorf("versions: %+v", d.Versions)
	}
	var page bytes.Buffer
	if err := d.HTML(&page); err != nil || page.Len() < 50_000 {
		t.Errorf("a page of %d bytes, %v", page.Len(), err)
	}
}
