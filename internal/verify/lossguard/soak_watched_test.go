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

// waitsFor is a soak without an API server, of one ready node whose agent reports every ten
// seconds.
type waitsFor struct {
	*testing.T
	soak     *lossguard.Soak
	clock    time.Time
	sequence int64
	// pods are those that the API server has.
	pods []client.Object
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
	w.soak.Client = fake.NewClientBuilder().WithScheme(scheme).WithObjects(append([]client.Object{report, node}, w.pods...)...).
		WithIndex(&corev1.Pod{}, metav1.ObjectNameField, func(o client.Object) []string { return []string{o.GetName()} }).Build()
	err := w.soak.Verify(w.Context())
	w.clock = w.clock.Add(10 * time.Second)
	return err
}

// TestEveryOldAddressIsWatched: without a client, finish waits until every node watches every
// address, and has then to see none for as long as ever.
func TestEveryOldAddressIsWatched(t *testing.T) {
	a, b := netip.MustParseAddr("10.96.3.7"), netip.MustParseAddr("10.96.3.8")
	cart := leftaddress.FormerOwner{Service: types.NamespacedName{Namespace: "shop", Name: "cart"}}
	all, one := leftaddress.Addresses{a: cart, b: cart}, leftaddress.Addresses{a: cart}
	reserved := one
	w := newWaitsFor(t)
	w.soak.Left = func(context.Context) (leftaddress.Addresses, error) { return reserved, nil }
	w.soak.Must = map[netip.Addr]string{a: "shop/cart", b: "shop/cart"}
	watching := func(s leftaddress.Addresses) func(*v1alpha1.NodeReportStatus) {
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
	if took := w.until(3*time.Minute, watching(all)); took < time.Minute {
		t.Errorf("over %s after everything is watched", took)
	}
}

// until looks until the soak is over, and says how long that took.
func (w *waitsFor) until(limit time.Duration, more ...func(*v1alpha1.NodeReportStatus)) time.Duration {
	w.Helper()
	began := w.clock
	for {
		err := w.looks(more...)
		if err == nil {
			return w.clock.Sub(began)
		}
		if w.clock.Sub(began) > limit {
			w.Fatalf("not over after %s: %v", limit, err)
		}
	}
}

func coredns(workload string, seen time.Time, open int) v1alpha1.OldAddressClient {
	return v1alpha1.OldAddressClient{
		Address: "10.96.0.1:443", Protocol: "TCP", Service: "default/kubernetes", Source: "10.244.1.3",
		Pod: "kube-system/coredns-x", Workload: workload, LastSeen: metav1.NewMicroTime(seen), Open: open,
	}
}

// TestOnePodIsOneClient: a pod that has long gone and that a node remembers twice, since it had
// lost its labels before it ended, is not seen again with each report.
func TestOnePodIsOneClient(t *testing.T) {
	w := newWaitsFor(t)
	seen := w.clock.Add(-38 * time.Minute)
	twice := func(st *v1alpha1.NodeReportStatus) {
		st.Clients = []v1alpha1.OldAddressClient{coredns("", seen, 0), coredns("Deployment kube-system/coredns", seen.Add(-time.Minute), 0)}
	}
	w.until(3*time.Minute, twice)
	report := v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	twice(&report.Status)
	all := lossguard.Clients([]v1alpha1.NodeReport{report})
	if len(all) != 1 || all[0].Workload != "Deployment kube-system/coredns" || !all[0].LastSeen.Time.Equal(seen) {
		t.Errorf("clients %v", all)
	}
}

// TestPodsThatHaveGoneAreNotWaitedFor: neither where the node says so, nor where it is behind and
// the API server does. One that is there, as the control, is.
func TestPodsThatHaveGoneAreNotWaitedFor(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "coredns-x"}}
	for name, tt := range map[string]struct {
		gone bool
		pods []client.Object
		over bool
	}{
		"the node says so":       {true, []client.Object{pod}, true},
		"the API server says so": {false, nil, true},
		"it is there":            {false, []client.Object{pod}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWaitsFor(t)
			w.pods = tt.pods
			c := coredns("", w.clock.Add(-time.Second), 0)
			c.Gone, c.Open = tt.gone, 1
			uses := func(st *v1alpha1.NodeReportStatus) { st.Clients = []v1alpha1.OldAddressClient{c} }
			if err := w.looks(uses); err == nil || strings.Contains(err.Error(), "coredns") == tt.over {
				t.Errorf("waits for %v", err)
			}
			if tt.gone {
				w.until(3*time.Minute, uses)
			}
		})
	}
}
