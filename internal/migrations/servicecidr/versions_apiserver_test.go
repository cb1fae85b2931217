//go:build apiserver && long

package servicecidr

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/serviceranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/checks"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// The tests of this file run with whatever Kubernetes KUBEBUILDER_ASSETS names; make e2e
// RUN=versions has them run with several.

// minor is that of the API server's version.
func minor(t *testing.T, c *cluster.Cluster) int {
	t.Helper()
	v, err := c.ServerVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// rangesOf is what the API server that the tests are run with serves.
func rangesOf(t *testing.T, c *cluster.Cluster) serviceranges.RangeAPI {
	switch flags := os.Getenv(apitest.FlagsVariable); {
	case minor(t, c) >= 33:
		return serviceranges.RangesV1
	case strings.Contains(flags, "MultiCIDRServiceAllocator=true") && strings.Contains(flags, "v1beta1=true"):
		return serviceranges.RangesV1Beta1
	}
	return serviceranges.Bitmap
}

// TestVersionIsTold has check say what a cluster has.
func TestVersionIsTold(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) {
		m.Annotations = map[string]string{v1alpha1.AnnotationDualWrite: checks.DualWriteOff}
	})
	f.service("cart")
	s, ctx := server, t.Context()
	want := rangesOf(t, s.Cluster)
	if got, err := s.Ranges(ctx); got != want || err != nil {
		t.Fatalf("the cluster has %q, %v; want %q", got, err, want)
	}
	p, err := f.job.Look(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var told findings.Finding
	for _, found := range p.Found() {
		if found.Code == "RP1001" {
			told = found
		}
	}
	if told.Outcome != findings.Pass {
		t.Fatalf("with %q, %+v", want, told)
	}
	if flag := slices.Contains(p.Found().Codes(), "RP1731"); flag != (want == serviceranges.Bitmap) {
		t.Errorf("with %q, it is said that the range is a flag: %v", want, flag)
	}
	left := &v1alpha1.MigrationList{}
	if err := s.List(ctx, left); err == nil && len(left.Items) > 0 {
		t.Error("a Migration was recorded")
	}
}

// TestAddressesAreWrittenTwice holds what RP1730 says against an API server: with its flag at
// another range, one that writes addresses twice refuses a Service that names an address in it, one
// that does not takes it.
func TestAddressesAreWrittenTwice(t *testing.T) {
	s := apitest.Start(t, "10.96.0.0/16")
	ctx := t.Context()
	if rangesOf(t, s.Cluster) == serviceranges.Bitmap {
		t.Log("an API server without ServiceCIDRs has but the bitmap")
		return
	}
	target := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "target"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.24.0.0/16"}},
	}
	if err := s.Create(ctx, target); err != nil {
		t.Fatal(err)
	}
	if err := s.Restart(func() error { s.SetFlag("service-cluster-ip-range", "172.24.0.0/16"); return nil }); err != nil {
		t.Fatal(err)
	}
	v, err := s.ServerVersion(ctx)
	if err != nil {
		t.Fatal(err)
	}
	seen, err := apiserver.SeeDualWrite(ctx, s.Cluster, v)
	if err != nil {
		t.Fatal(err)
	}
	disabled := strings.Contains(os.Getenv(apitest.FlagsVariable), "DisableAllocatorDualWrite=true")
	twice := minor(t, s.Cluster) < 34 && !disabled
	if (seen == apiserver.DualWriteOff) != (minor(t, s.Cluster) >= 34 || disabled && strings.Contains(os.Getenv(apitest.FlagsVariable), "ComponentFlagz")) {
		t.Errorf("dual write is seen as %s", seen)
	}
	var last error
	as := func(ctx context.Context) (bool, error) {
		last = s.Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "named"},
			Spec:       corev1.ServiceSpec{ClusterIP: "172.24.3.7", Ports: []corev1.ServicePort{{Port: 80}}},
		})
		refused := last != nil && strings.Contains(last.Error(), "does not match the current range")
		return refused == twice && (last == nil) != twice, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, 20*time.Second, true, as); err != nil {
		t.Errorf("addresses are written twice: %v; a Service that names its own: %v", twice, last)
	}
}
