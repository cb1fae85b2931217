//go:build apiserver && programs && long

package mirror

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// minutely are CronJobs of every minute, enough for some to be suspended just before their
// controller makes a Job, some just after, and some meanwhile.
const minutely = 12

// TestEveryMinuteRunsOnce has the CronJob controllers of both clusters run while what must not run
// twice changes sides, there and back by either command, at the moment at which Jobs are due.
// Before, the side that was woken started the latest run that it had missed, whoever had run it.
func TestEveryMinuteRunsOnce(t *testing.T) {
	f := setup(t)
	for i := range minutely {
		f.must(f.source.Create(t.Context(), everyMinute(i)))
	}
	f.starts = func(step string) {
		if strings.HasSuffix(step, "handover/sleep") {
			f.untilDue()
		}
	}
	f.ran(f.source, 1)
	for _, do := range []func(context.Context, *engine.Runner) error{f.apply, f.rollback, f.apply, f.finish} {
		f.must(f.run(0, do))
	}
	f.ran(f.source, 1)
	f.ranOnce()
}

func everyMinute(i int) *batchv1.CronJob {
	pod := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "c"}}}
	return &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("minutely%d", i)},
		Spec: batchv1.CronJobSpec{
			Schedule: "* * * * *", SuccessfulJobsHistoryLimit: ptr.To[int32](100),
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}}},
		},
	}
}

// untilDue waits for the moment at which controllers make the Jobs of a minute: upstream, 100 ms
// after it begins.
func (f *fixture) untilDue() {
	const due = 80 * time.Millisecond
	timer := time.NewTimer(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute + due)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-f.Context().Done():
	}
}

// ran waits until a side has run every CronJob in so many minutes from the next on.
func (f *fixture) ran(s *apitest.Server, minutes int64) {
	f.Helper()
	last := time.Now().Unix()/60 + minutes
	f.must(wait.PollUntilContextTimeout(f.Context(), time.Second, 3*time.Minute, true, func(context.Context) (bool, error) {
		done := 0
		for _, ran := range f.minutes(s) {
			if slices.Contains(ran, last) {
				done++
			}
		}
		return done == minutely, nil
	}))
}

// minutes are those that each CronJob has run in a cluster, in order.
func (f *fixture) minutes(s *apitest.Server) map[string][]int64 {
	f.Helper()
	jobs := &batchv1.JobList{}
	f.must(s.List(f.Context(), jobs, client.InNamespace("shop")))
	all := map[string][]int64{}
	for i := range jobs.Items {
		name, minute, _ := strings.Cut(jobs.Items[i].Name, "-")
		n, err := strconv.ParseInt(minute, 10, 64)
		f.must(err)
		all[name] = append(all[name], n)
	}
	for _, ran := range all {
		slices.Sort(ran)
	}
	return all
}

// ranOnce fails the test unless each minute from the first to the last ran in one of the clusters.
func (f *fixture) ranOnce() {
	f.Helper()
	here, there := f.minutes(f.source), f.minutes(f.target)
	inTarget := 0
	for i := range minutely {
		name := fmt.Sprintf("minutely%d", i)
		f.Logf("%s: source %v, target %v", name, here[name], there[name])
		inTarget += len(there[name])
		for minute := here[name][0]; minute <= here[name][len(here[name])-1]; minute++ {
			a, b := slices.Contains(here[name], minute), slices.Contains(there[name], minute)
			switch {
			case a && b:
				f.Errorf("%s ran twice, once in each cluster, for minute %d", name, minute)
			case !a && !b:
				f.Errorf("%s did not run for minute %d", name, minute)
			}
		}
	}
	if inTarget == 0 {
		f.Error("the target ran nothing")
	}
}
