//go:build apiserver && long

package servicecidr

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/crash"
)

// everyWrite cuts act off after its first, second, third … write, or, in short, once in the middle
// of each phase that writes, and calls then after each. before makes what act begins with.
func everyWrite(t *testing.T, least int, before func() *fixture, act func(*fixture) error, then func(f *fixture, n int)) {
	t.Helper()
	run := func(last int) (*fixture, *crash.Client, error) {
		f := before()
		cut := *f.job.Deps.Cluster
		c := &crash.Client{WithWatch: server.WithWatch, Last: last}
		cut.WithWatch = c
		sink := f.runner.Sink
		f.runner.Sink = func(e engine.Event) {
			c.Event(e)
			if sink != nil {
				sink(e)
			}
		}
		var err error
		f.through(&cut, func() { err = act(f) })
		f.runner.Sink = sink
		return f, c, err
	}
	_, whole, err := run(0)
	if err != nil || whole.Writes() <= least {
		t.Fatalf("a whole run made %d writes: %v", whole.Writes(), err)
	}
	for _, hidden := range whole.Hidden() {
		t.Errorf("%s, and plan does not show it", hidden)
	}
	if testing.Short() {
		points := whole.Points()
		t.Logf("cut off after writes %v of %d", points, whole.Writes())
		for _, n := range points {
			// With more writes, more of them are attempts that are repeated.
			varies := max(4, whole.Writes()/8)
			// After the last write there is nothing to cut off, and how often the status says which
			// phase a run is in varies.
			if !cutOff(t, n, run, then) && n < whole.Writes()-varies {
				t.Fatalf("write %d: the run got through, where another made %d writes", n, whole.Writes())
			}
		}
		return
	}
	for n := 1; cutOff(t, n, run, then); n++ {
		t.Logf("cut off after write %d", n)
	}
}

// cutOff cuts a run off after a number of writes, and reports whether it did: a run may have fewer.
func cutOff(t *testing.T, n int, run func(int) (*fixture, *crash.Client, error), then func(*fixture, int)) bool {
	t.Helper()
	f, _, err := run(n)
	if err == nil {
		return false
	}
	if !errors.Is(err, crash.ErrKilled) {
		t.Fatalf("write %d: %v", n, err)
	}
	then(f, n)
	if t.Failed() {
		t.Fatalf("after write %d", n)
	}
	return true
}

// bothForms runs a test of hops to a bridge, and of hops after which Services keep their old
// address themselves.
func bothForms(t *testing.T, test func(t *testing.T, change func(*v1alpha1.Migration))) {
	for _, form := range []v1alpha1.OverlapForm{v1alpha1.OverlapBridge, v1alpha1.OverlapExternalIP} {
		t.Run(string(form), func(t *testing.T) { test(t, overlapBy(form)) })
	}
}

// moved is a cluster on which apply went through.
func moved(t *testing.T, change func(*v1alpha1.Migration)) (*fixture, *corev1.Service) {
	f := setup(t, change)
	f.node("a", "192.0.2.1")
	was := f.service("cart", at("10.96.3.7"))
	f.pod("cart-1", "cart", "10.244.0.4")
	f.apply()
	return f, was
}

func TestApplyKilledAfterEveryWrite(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		var was *corev1.Service
		begin := func() *fixture {
			f := setup(t, change)
			was = f.service("cart", at("10.96.3.7"))
			f.pod("cart-1", "cart", "10.244.0.4")
			return f
		}
		apply := func(f *fixture) error {
			_, err := f.job.Apply(t.Context(), f.runner)
			return err
		}
		everyWrite(t, 12, begin, apply, func(f *fixture, n int) {
			if n%2 == 1 { // half of them go on, the others turn back
				f.apply()
				f.moved(was, f.get("cart"))
				if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
					t.Errorf("at %s", is.Spec.ClusterIP)
				}
			} else if f.again() != nil {
				f.must(f.rollback())
				f.rolledBack(was)
			}
		})
	})
}

func TestFinishKilledAfterEveryWrite(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		var was *corev1.Service
		begin := func() *fixture {
			var f *fixture
			f, was = moved(t, change)
			return f
		}
		everyWrite(t, 6, begin, (*fixture).finish, func(f *fixture, _ int) {
			f.again()
			f.must(f.finish())
			is := f.get("cart")
			f.sameButAddress(was, is)
			if is.Spec.ClusterIP != "172.24.3.7" || len(is.Annotations) > 0 || f.owner("10.96.3.7") != "" {
				t.Errorf("at %s with %v; the old address belongs to %q", is.Spec.ClusterIP, is.Annotations, f.owner("10.96.3.7"))
			}
			f.nothingLeft()
			if st := f.again().Status; st.Phase != v1alpha1.PhaseFinished || !st.PointOfNoReturnPassed || st.Counts.Moved != 1 {
				t.Errorf("status %+v", st)
			}
		})
	})
}

func TestRollbackKilledAfterEveryWrite(t *testing.T) {
	bothForms(t, func(t *testing.T, change func(*v1alpha1.Migration)) {
		var was *corev1.Service
		begin := func() *fixture {
			var f *fixture
			f, was = moved(t, change)
			return f
		}
		everyWrite(t, 12, begin, (*fixture).rollback, func(f *fixture, _ int) {
			f.again()
			f.must(f.rollback())
			f.rolledBack(was)
		})
	})
}
