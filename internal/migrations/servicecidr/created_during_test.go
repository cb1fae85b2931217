//go:build apiserver && long

package servicecidr

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/network/bridge"
)

// aWeekLater is a cluster on which apply went through, with Services made since: one that can move,
// and those that cannot.
func aWeekLater(t *testing.T, fixed ...func(*corev1.Service)) (f *fixture, was, late *corev1.Service) {
	t.Helper()
	f, was = moved(t, overlapBy(v1alpha1.OverlapBridge))
	late = f.service("late", at("172.24.9.9"))
	for i, change := range fixed {
		f.service([]string{"fixed", "firm", "still"}[i], change)
	}
	return f, was, late
}

func in(ip string, change func(*corev1.Service)) func(*corev1.Service) {
	return func(s *corev1.Service) {
		at(ip)(s)
		change(s)
	}
}

func pinned(s *corev1.Service) {
	s.Annotations = map[string]string{v1alpha1.AnnotationStrategy: v1alpha1.StrategyPin}
}

// kept fails unless the target range is the cluster's own.
func (f *fixture) kept() {
	f.Helper()
	if got, want := f.ranges(), "10.96.0.0/16 172.24.0.0/16"; got != want {
		f.Errorf("ranges are %s, want %s", got, want)
	}
	if phase := f.again().Status.Phase; phase != v1alpha1.PhaseRolledBack {
		f.Errorf("phase %s", phase)
	}
	f.nothingLeft()
}

// unchanged fails if a Service was written.
func (f *fixture) unchanged(was *corev1.Service) {
	f.Helper()
	if is := f.get(was.Name); is.ResourceVersion != was.ResourceVersion {
		f.Errorf("%s was written: %+v", is.Name, is)
	}
}

func (f *fixture) lateOnes() (movable, fixed []string) {
	f.Helper()
	s, err := f.job.LoadInventory(f.Context())
	f.must(err)
	for _, l := range FindCreatedDuring(s) {
		if l.Stays == "" {
			movable = append(movable, l.Service)
		} else {
			fixed = append(fixed, l.Service+" "+l.Stays)
		}
	}
	return movable, fixed
}

// TestRangeDeletedInUse is the control of the tests below: what a rollback did before. The range
// stays, gives out no addresses, and cannot be made again.
func TestRangeDeletedInUse(t *testing.T) {
	f := setup(t)
	f.openRange("week", oldRange)
	f.service("late", at("172.31.9.9"))
	have, err := ranges.ServiceCIDR(t.Context(), server, "week")
	f.must(err)
	f.must(ranges.DeleteRange(t.Context(), server, have))
	f.eventually("the range gives out no addresses", func() error {
		svc := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", GenerateName: "next-"},
			Spec:       corev1.ServiceSpec{ClusterIP: "172.31.9.10", Ports: []corev1.ServicePort{{Port: 80}}},
		}
		if err := server.Create(t.Context(), svc); err != nil {
			return nil //nolint:nilerr // as it is to be
		}
		f.must(server.Delete(t.Context(), svc))
		return errNotYet
	})
	again := &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "week"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{oldRange}},
	}
	if err := server.Create(t.Context(), again); !apierrors.IsAlreadyExists(err) {
		t.Errorf("making the range again: %v", err)
	}
	if have, err = ranges.ServiceCIDR(t.Context(), server, "week"); err != nil || have == nil || have.DeletionTimestamp.IsZero() {
		t.Errorf("the range is %+v, %v", have, err)
	}
}

// TestRollbackKeepsTheRangeOfLateServices, and both this migration and another can begin after it.
func TestRollbackKeepsTheRangeOfLateServices(t *testing.T) {
	f, was, late := aWeekLater(t)
	f.job.CreatedDuring = KeepCreatedDuring
	f.must(f.rollback())
	f.kept()
	f.unchanged(late)
	if is := f.get("cart"); !equality.Semantic.DeepEqual(was.Spec, is.Spec) || len(is.Annotations) > 0 {
		t.Errorf("cart is %+v with %v", is.Spec, is.Annotations)
	}
	f.apply()
	f.unchanged(late)
	f.must(f.rollback())
	f.kept()
	f.unchanged(late)
	next := sample()
	next.Name, next.Spec.ServiceCIDR.To = "next", []string{"172.30.0.0/16"}
	job, err := NewJob(f.job.Deps, next)
	f.must(err)
	job.Holder = f.job.Holder
	_, err = job.Apply(t.Context(), f.runner)
	f.must(err)
	if is := f.get("late"); !strings.HasPrefix(is.Spec.ClusterIP, "172.30.") {
		t.Errorf("the next migration left it at %s", is.Spec.ClusterIP)
	}
}

// TestRollbackMovesLateServices to the old range, by the machinery that moved the others, and takes
// the new one away.
func TestRollbackMovesLateServices(t *testing.T) {
	f, was, late := aWeekLater(t)
	ports := f.service("ports", at("172.24.3.9"), nodePort)
	f.job.CreatedDuring = MoveCreatedDuring
	movable, fixed := f.lateOnes()
	if !slices.Equal(movable, []string{"shop/late", "shop/ports"}) || len(fixed) > 0 {
		t.Errorf("late are %v and %v", movable, fixed)
	}
	f.must(f.rollback())
	f.rolledBack(was)
	for _, w := range []*corev1.Service{late, ports} {
		is := f.get(w.Name)
		f.sameButAddress(w, is)
		if want := strings.Replace(w.Spec.ClusterIP, "172.24", "10.96", 1); is.Spec.ClusterIP != want || len(is.Annotations) > 0 {
			t.Errorf("%s is at %s with %v, want %s", w.Name, is.Spec.ClusterIP, is.Annotations, want)
		}
	}
}

// TestLateServicesThatCannotMove are named, keep their addresses, and the range with them; those
// that can move do.
func TestLateServicesThatCannotMove(t *testing.T) {
	f, was, late := aWeekLater(t, in("172.24.9.20", loadBalancer), in("172.24.9.21", pinned))
	f.job.CreatedDuring = MoveCreatedDuring
	lb, pin := f.get("fixed"), f.get("firm")
	_, fixed := f.lateOnes()
	if text := strings.Join(fixed, "; "); !strings.Contains(text, "shop/fixed is of type LoadBalancer") ||
		!strings.Contains(text, "shop/firm is pinned") {
		t.Errorf("cannot move: %s", text)
	}
	f.must(f.rollback())
	f.kept()
	f.unchanged(lb)
	f.unchanged(pin)
	f.sameButAddress(late, f.get("late"))
	if is := f.get("late"); is.Spec.ClusterIP != "10.96.9.9" {
		t.Errorf("late is at %s", is.Spec.ClusterIP)
	}
	if is := f.get("cart"); is.Spec.ClusterIP != was.Spec.ClusterIP {
		t.Errorf("cart is at %s", is.Spec.ClusterIP)
	}
}

// atDeletion does something right before a ServiceCIDR is deleted.
type atDeletion struct {
	client.WithWatch
	do   func()
	once sync.Once
}

func (c *atDeletion) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if _, ok := o.(*networkingv1.ServiceCIDR); ok {
		c.once.Do(c.do)
	}
	return c.WithWatch.Delete(ctx, o, opts...)
}

// TestServiceSlipsInBeforeTheRangeGoes: the range is open again, under another name, and nothing is
// left in deletion.
func TestServiceSlipsInBeforeTheRangeGoes(t *testing.T) {
	f, _ := moved(t, overlapBy(v1alpha1.OverlapBridge))
	f.runner.Deadline = 0 // a range that goes takes its time
	cut := *f.job.Deps.Cluster
	cut.WithWatch = &atDeletion{WithWatch: f.job.Deps.Cluster.WithWatch, do: func() { f.service("late", at("172.24.9.9")) }}
	f.through(&cut, func() { f.must(f.rollback()) })
	f.kept()
	if got, want := f.owner("172.24.9.9"), "services shop/late"; got != want {
		t.Errorf("its address belongs to %q", got)
	}
	f.eventually(
		"the range to give out addresses",
		func() error { return server.Create(t.Context(), plainService("shop", "next", "172.24.9.10")) },
	)
	f.apply()
}

// TestRollbackThatMovesLateServicesKilledAfterEveryWrite goes on when it is run again.
func TestRollbackThatMovesLateServicesKilledAfterEveryWrite(t *testing.T) {
	var was, late *corev1.Service
	begin := func() *fixture {
		var f *fixture
		f, was, late = aWeekLater(t)
		f.job.CreatedDuring = MoveCreatedDuring
		return f
	}
	everyWrite(t, 15, begin, (*fixture).rollback, func(f *fixture, _ int) {
		f.again()
		f.job.late = nil // as in a new process
		f.must(f.rollback())
		f.rolledBack(was)
		f.sameButAddress(late, f.get("late"))
		if is := f.get("late"); is.Spec.ClusterIP != "10.96.9.9" || len(is.Annotations) > 0 {
			t.Errorf("late is at %s with %v", is.Spec.ClusterIP, is.Annotations)
		}
	})
}

// TestLateServiceFindsItsAddressTaken: another Service was given the address that was chosen for
// it.
func TestLateServiceFindsItsAddressTaken(t *testing.T) {
	f, was, late := aWeekLater(t)
	f.job.CreatedDuring = MoveCreatedDuring
	f.on(engine.StepStarted, "late/shop/late", func() { f.service("quick", at("10.96.9.9")) })
	f.must(f.rollback())
	f.rolledBack(was)
	f.sameButAddress(late, f.get("late"))
	if is := f.get("late"); !strings.HasPrefix(is.Spec.ClusterIP, "10.96.") || is.Spec.ClusterIP == "10.96.9.9" {
		t.Errorf("late is at %s", is.Spec.ClusterIP)
	}
	if b := bridge.Name(late.Name, late.UID); len(f.endpoints(b)) > 0 {
		t.Errorf("bridge %s is left", b)
	}
}
