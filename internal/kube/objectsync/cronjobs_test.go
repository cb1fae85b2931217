//go:build apiserver && long

package objectsync_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/runonce"
)

// schedule makes a CronJob that has not run yet.
func (f *fixture) schedule(s *objectsync.Side) *batchv1.CronJob {
	f.Helper()
	pod := corev1.PodTemplateSpec{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "c"}},
	}}
	job := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: f.shop, Name: "bill"},
		Spec: batchv1.CronJobSpec{
			Schedule: "0 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: pod}},
		},
	}
	f.must(s.Create(f.Context(), job))
	return job
}

func (f *fixture) must(err error) {
	f.Helper()
	if err != nil {
		f.Fatal(err)
	}
}

func (f *fixture) cronJob(s *objectsync.Side) *batchv1.CronJob {
	f.Helper()
	job := &batchv1.CronJob{}
	f.must(s.Get(f.Context(), client.ObjectKey{Namespace: f.shop, Name: "bill"}, job))
	return job
}

func (f *fixture) ranAt(s *objectsync.Side, at time.Time) {
	f.Helper()
	job := f.cronJob(s)
	job.Status.LastScheduleTime = &metav1.Time{Time: at}
	f.must(s.Status().Update(f.Context(), job))
}

func (f *fixture) counts(s *objectsync.Side, from time.Time) {
	f.Helper()
	if last := f.cronJob(s).Status.LastScheduleTime; last == nil || !last.Time.Equal(from) {
		f.Errorf("the CronJob counts from %v, want %v", last, from)
	}
}

// playController takes out of CronJobs what is said to be active and is not, as the CronJob
// controller does.
func (f *fixture) playController(s *objectsync.Side) {
	ctx, stop := context.WithCancel(context.Background())
	var playing sync.WaitGroup
	playing.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 20*time.Millisecond, false, func(ctx context.Context) (bool, error) {
			job := &batchv1.CronJob{}
			if err := s.Get(ctx, client.ObjectKey{Namespace: f.shop, Name: "bill"}, job); err == nil && len(job.Status.Active) > 0 {
				job.Status.Active = nil
				_ = s.Status().Update(ctx, job)
			}
			return false, nil
		})
	})
	f.Cleanup(func() { stop(); playing.Wait() })
}

// TestRunsAreHandedOver: a CronJob that is woken counts from the latest run of the other side, so
// that nothing is made up for that has run there. Before, it counted from when its copy was made,
// or from when it had been suspended.
func TestRunsAreHandedOver(t *testing.T) {
	f := setup(t)
	f.schedule(f.source)
	c := f.copier(nil)
	f.clean(c)
	f.playController(f.source)
	f.playController(f.target)
	hour := time.Now().Truncate(time.Hour)
	f.ranAt(f.source, hour.Add(-time.Hour))
	handOver := func(from, to *objectsync.Side) {
		t.Helper()
		_, err := singletons(c, from).Sleep(t.Context())
		f.must(err)
		f.must(singletons(c, from).Settle(t.Context()))
		_, err = singletons(c, to).Wake(t.Context(), from)
		f.must(err)
		if *f.cronJob(to).Spec.Suspend || !*f.cronJob(from).Spec.Suspend {
			t.Error("it runs on the wrong side")
		}
	}
	handOver(f.source, f.target)
	f.counts(f.target, hour.Add(-time.Hour))
	f.ranAt(f.target, hour)
	handOver(f.target, f.source)
	f.counts(f.source, hour)
	if notes := f.cronJob(f.source).Annotations; notes[v1alpha1.AnnotationSettled] != "" || notes[v1alpha1.AnnotationSuspend] != "" {
		t.Errorf("notes are left: %v", notes)
	}
	// A copy that was deleted in the target says nothing of what ran there.
	handOver(f.source, f.target)
	f.must(f.target.Delete(t.Context(), f.cronJob(f.target)))
	_, err := singletons(c, f.source).Wake(t.Context(), f.target)
	f.must(err)
	if last := f.cronJob(f.source).Status.LastScheduleTime; last == nil || time.Since(last.Time) > time.Minute {
		t.Errorf("the CronJob counts from %v", last)
	}
}

// TestLateJobIsSeen: the Job that a controller makes of what it knew before a CronJob was suspended
// is waited for and counted, although the controller could not write the status any more.
func TestLateJobIsSeen(t *testing.T) {
	f := setup(t)
	cron := f.schedule(f.source)
	c := f.copier(nil)
	_, err := singletons(c, f.source).Sleep(t.Context())
	f.must(err)
	done := make(chan error, 1)
	go func() { done <- singletons(c, f.source).Settle(t.Context()) }()
	f.eventually("the controller is asked", func() bool { return len(f.cronJob(f.source).Status.Active) == 1 })
	left, err := singletons(c, f.source).Unsettled(t.Context())
	if err != nil || len(left) != 1 {
		t.Fatalf("settled although the controller has not answered: %v, %v", left, err)
	}
	due := time.Now().Truncate(time.Minute)
	late := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.shop, Name: fmt.Sprintf("bill-%d", due.Unix()/60),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cron, batchv1.SchemeGroupVersion.WithKind("CronJob"))},
		},
		Spec: cron.Spec.JobTemplate.Spec,
	}
	byHand := late.DeepCopy()
	byHand.Name = "bill-99999999"
	f.must(f.source.Create(t.Context(), late))
	f.must(f.source.Create(t.Context(), byHand))
	f.playController(f.source)
	f.must(<-done)
	f.counts(f.source, due)
	jobs, err := runonce.JobsByOwner(t.Context(), f.source)
	if err != nil || len(jobs[cron.UID]) != 2 {
		t.Errorf("jobs %v, %v", jobs[cron.UID], err)
	}
	if left, err := singletons(c, f.source).Unsettled(t.Context()); err != nil || len(left) != 0 {
		t.Errorf("unsettled %v, %v", left, err)
	}
}
