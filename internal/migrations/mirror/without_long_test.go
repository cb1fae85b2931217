//go:build apiserver && programs && long

package mirror

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// TestWithoutTarget leads names back from a mirror whose API server is gone, by either command, and
// wakes what sleeps in the source. Without being told, both end with an error that says how.
// Before, there was no way back.
func TestWithoutTarget(t *testing.T) {
	for name, back := range map[string]func(*fixture, context.Context, *engine.Runner) error{
		"rollback": (*fixture).rollback, "finish": (*fixture).finish,
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t)
			f.must(f.run(0, f.apply))
			f.dead = true
			do := func(ctx context.Context, r *engine.Runner) error { return back(f, ctx, r) }
			err := f.run(0, do)
			var gone *TargetError
			if !errors.As(err, &gone) || !strings.Contains(fault.Advice(err), "--without-target") {
				t.Fatalf("with the target gone: %v (%s)", err, fault.Advice(err))
			}
			f.leads(targetAt, time.Second)
			before := time.Now()
			f.must(f.run(0, func(ctx context.Context, r *engine.Runner) error {
				f.job.WithoutTarget = true
				return do(ctx, r)
			}))
			f.leads(sourceAt, 3*time.Second)
			if n := *get(f, f.source, &appsv1.Deployment{}, "mailer").Spec.Replicas; n != 1 {
				t.Errorf("mailer has %d replicas", n)
			}
			nightly := get(f, f.source, &batchv1.CronJob{}, "nightly")
			if last := nightly.Status.LastScheduleTime; *nightly.Spec.Suspend || last == nil || before.Sub(last.Time) > time.Minute {
				t.Errorf("nightly is suspended: %v, and counts from %v", *nightly.Spec.Suspend, last)
			}
			want := map[string]v1alpha1.Phase{"rollback": v1alpha1.PhaseRolledBack, "finish": v1alpha1.PhaseFinished}[name]
			if st := f.status(); st.Phase != want || st.Mirror.Serving != v1alpha1.ServingSource {
				t.Errorf("status %s, %s serves", st.Phase, st.Mirror.Serving)
			}
		})
	}
}
