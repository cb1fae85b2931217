//go:build apiserver

package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
)

var errKilled = errors.New("killed")

// everyWrite cuts act off after its first, second, third … write, or a sample of them, calls then after each, and ends when
// act got through.
// before makes what act begins with.
func everyWrite(t *testing.T, least int, before func() *fixture, act func(*fixture) error, then func(f *fixture, n int)) {
	t.Helper()
	step := 1
	if testing.Short() {
		step = 9 // some of each phase
	}
	for n := 1; ; n += step {
		f := before()
		cut := *f.job.Tools.Cluster
		cut.WithWatch = &killer{WithWatch: server.WithWatch, left: n}
		var err error
		f.through(&cut, func() { err = act(f) })
		if err == nil {
			if n <= least {
				t.Fatalf("a whole run made only %d writes", n)
			}
			t.Logf("cut off after each %d. of %d writes", step, n-step)
			return
		}
		if !errors.Is(err, errKilled) {
			t.Fatalf("write %d: %v", n, err)
		}
		then(f, n)
		if t.Failed() {
			t.Fatalf("after write %d", n)
		}
	}
}

func (f *fixture) finish() error   { return f.job.Finish(f.Context(), f.runner) }
func (f *fixture) rollback() error { return f.job.Rollback(f.Context(), f.runner) }

// again is what a new process with the same command begins with: the Migration as the cluster has it.
func (f *fixture) again() *v1alpha1.Migration {
	f.Helper()
	m, err := migration.Get(f.Context(), server, "m")
	f.must(err)
	if m != nil {
		f.job.Migration = m
	}
	return m
}

// moved is a cluster on which apply went through.
func moved(t *testing.T) (*fixture, *corev1.Service) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	was := f.service("cart", at("10.96.3.7"))
	f.pod("cart-1", "cart", "10.244.0.4")
	f.apply()
	return f, was
}

func TestApplyKilledAfterEveryWrite(t *testing.T) {
	var was *corev1.Service
	begin := func() *fixture {
		f := setup(t)
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
			f.sameButAddress(was, f.get("cart"))
			if is := f.get("cart"); is.Spec.ClusterIP != "172.24.3.7" {
				t.Errorf("at %s", is.Spec.ClusterIP)
			}
		} else if f.again() != nil {
			f.must(f.rollback())
			f.rolledBack(was)
		}
	})
}

func TestFinishKilledAfterEveryWrite(t *testing.T) {
	var was *corev1.Service
	begin := func() *fixture {
		var f *fixture
		f, was = moved(t)
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
}

func TestRollbackKilledAfterEveryWrite(t *testing.T) {
	var was *corev1.Service
	begin := func() *fixture {
		var f *fixture
		f, was = moved(t)
		return f
	}
	everyWrite(t, 12, begin, (*fixture).rollback, func(f *fixture, _ int) {
		f.again()
		f.must(f.rollback())
		f.rolledBack(was)
	})
}

// rolledBack fails if a rollback left anything other than what was there before apply.
func (f *fixture) rolledBack(was *corev1.Service) {
	f.Helper()
	is := f.get(was.Name)
	if !equality.Semantic.DeepEqual(was.Spec, is.Spec) || len(is.Annotations) > 0 {
		f.Errorf("rolled back to %+v with %v", is.Spec, is.Annotations)
	}
	f.nothingLeft()
	err := server.Get(f.Context(), client.ObjectKey{Name: "m"}, &networkingv1.ServiceCIDR{})
	if !apierrors.IsNotFound(err) {
		f.Errorf("the target range is left: %v", err)
	}
	if phase := f.again().Status.Phase; phase != v1alpha1.PhaseRolledBack {
		f.Errorf("phase %s", phase)
	}
}

// killer lets a number of writes through, and none after them.
type killer struct {
	client.WithWatch
	mu   sync.Mutex
	left int
}

func (k *killer) spend() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.left == 0 {
		return errKilled
	}
	k.left--
	return nil
}

func (k *killer) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	co := &client.CreateOptions{}
	co.ApplyOptions(opts)
	_, review := o.(interface{ GetGenerateName() string })
	if review && len(co.DryRun) == 0 && !strings.HasSuffix(fmt.Sprintf("%T", o), "AccessReview") {
		if err := k.spend(); err != nil {
			return err
		}
	}
	return k.WithWatch.Create(ctx, o, opts...)
}

func (k *killer) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := k.spend(); err != nil {
		return err
	}
	return k.WithWatch.Update(ctx, o, opts...)
}

func (k *killer) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if err := k.spend(); err != nil {
		return err
	}
	return k.WithWatch.Patch(ctx, o, p, opts...)
}

func (k *killer) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := k.spend(); err != nil {
		return err
	}
	return k.WithWatch.Delete(ctx, o, opts...)
}

func (k *killer) Status() client.SubResourceWriter {
	return &statusKiller{SubResourceWriter: k.WithWatch.Status(), k: k}
}

type statusKiller struct {
	client.SubResourceWriter
	k *killer
}

func (s *statusKiller) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := s.k.spend(); err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, o, p, opts...)
}

func (s *statusKiller) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := s.k.spend(); err != nil {
		return err
	}
	return s.SubResourceWriter.Update(ctx, o, opts...)
}
