package lossguard_test

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/leftaddress"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// waitsFor is a soak without an API server, of one ready node whose agent reports every ten seconds.
type waitsFor struct {
	*testing.T
	soak     *lossguard.Soak
	clock    time.Time
	sequence int64
}

func newWaitsFor(t *testing.T) *waitsFor {
	w := &waitsFor{T: t, clock: time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)}
	w.soak = &lossguard.Soak{
		Migration: "move", Length: time.Minute, Limit: 2 * time.Minute, Now: func() time.Time { return w.clock },
	}
	return w
}

// looks has the agent report once more, and time pass after the look.
func (w *waitsFor) looks(more ...func(*v1alpha1.NodeReportStatus)) error {
	w.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			w.Fatal(err)
		}
	}
	w.sequence++
	report := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{v1alpha1.LabelMigration: "move"}}}
	report.Status.Agents = []v1alpha1.AgentReport{{
		Origin: v1alpha1.FromHost, Instance: "i", Sequence: w.sequence, ReportedAt: metav1.NewMicroTime(w.clock),
	}}
	for _, change := range more {
		change(&report.Status)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Status: corev1.NodeStatus{
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
	}}
	w.soak.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects([]client.Object{report, node}...).Build()
	err := w.soak.Verify(w.Context())
	w.clock = w.clock.Add(10 * time.Second)
	return err
}

// TestEveryOldAddressIsWatched: without a client, finish waits until every node watches every
// address, and has then to see none for as long as ever.
func TestEveryOldAddressIsWatched(t *testing.T) {
	a, b := netip.MustParseAddr("10.96.3.7"), netip.MustParseAddr("10.96.3.8")
	cart := leftaddress.Departure{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}}
	all, one := leftaddress.Set{a: cart, b: cart}, leftaddress.Set{a: cart}
	reserved := one
	w := newWaitsFor(t)
	w.soak.Left = func(context.Context) (leftaddress.Set, error) { return reserved, nil }
	w.soak.Must = map[netip.Addr]string{a: "shop/cart", b: "shop/cart"}
	watching := func(s leftaddress.Set) func(*v1alpha1.NodeReportStatus) {
		return func(st *v1alpha1.NodeReportStatus) { st.Watched = s.Watched() }
	}
	still := func(want string, more func(*v1alpha1.NodeReportStatus)) {
		t.Helper()
		for range 20 {
			if err := w.looks(more); err == nil || !engine.Retryable(err) || !strings.Contains(err.Error(), want) {
				t.Fatalf("%v, want to wait: %s", err, want)
			}
		}
	}
	still("old address 10.96.3.8 (service shop/cart) is not reserved any more", watching(one))
	reserved = all
	if err := w.looks(watching(one)); err == nil {
		t.Fatal("over at the first look")
	}
	still("node a does not watch old address 10.96.3.8 (service shop/cart)", watching(one))
	still("node a watches 0 of 2 old addresses", func(*v1alpha1.NodeReportStatus) {})
	began := w.clock
	for w.looks(watching(all)) != nil {
		if w.clock.Sub(began) > 3*time.Minute {
			t.Fatal("not over three minutes after everything is watched")
		}
	}
	if took := w.clock.Sub(began); took < time.Minute {
		t.Errorf("over %s after everything is watched", took)
	}
}
