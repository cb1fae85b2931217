package runonce

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// neverWas begins the name of a Job that a suspended CronJob names as active, and that never was.
// The CronJob controller takes it out once it deals with the CronJob as it is now.
const neverWas = "replumb-never-was-"

func cronJobs() objects.ResourceKind {
	return objects.ResourceKind{Group: "batch", Version: "v1", Kind: "CronJob", Resource: "cronjobs", Namespaced: true}
}

// Settle waits until the CronJob controller of the side has seen every CronJob that Sleep
// suspended, and notes on each the latest run. Then no Job of theirs begins any more, and all that
// have begun are there to be listed.
func (w Workloads) Settle(ctx context.Context) error {
	due, err := w.Unsettled(ctx)
	if err != nil {
		return err
	}
	for _, ref := range due {
		if err := w.askController(ctx, ref); err != nil {
			return fmt.Errorf("asking the controller of %s: %w", ref, err)
		}
	}
	for _, ref := range due {
		if err := w.answered(ctx, ref); err != nil {
			return fmt.Errorf("the CronJob controller has not seen that %s is suspended: %w", ref, err)
		}
	}
	return w.noteRuns(ctx, due)
}

// Unsettled are suspended CronJobs of the side of which a Job may still begin.
func (w Workloads) Unsettled(ctx context.Context) ([]objects.Ref, error) {
	var all []objects.Ref
	k := cronJobs()
	err := w.Side.Each(ctx, k, func(o *unstructured.Unstructured) error {
		sl := w.Rules.SleepOf(k, o)
		if sl != nil && w.Rules.Concerns(k, o) && sl.Asleep(o) && o.GetAnnotations()[v1alpha1.AnnotationSettled] != "true" {
			all = append(all, objects.RefOf(k, o))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", k, err)
	}
	return all, nil
}

// changeCronJob writes against the version that was read. A CronJob that is gone is left alone.
func (w Workloads) changeCronJob(
	ctx context.Context, ref objects.Ref, write func(*batchv1.CronJob, client.Patch) error, change func(*batchv1.CronJob) bool,
) error {
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		job := &batchv1.CronJob{}
		if err := w.Side.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, job); err != nil {
			return client.IgnoreNotFound(err)
		}
		before := job.DeepCopy()
		if !change(job) {
			return nil
		}
		return write(job, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	})
}

func (w Workloads) changeRuns(ctx context.Context, ref objects.Ref, change func(*batchv1.CronJob) bool) error {
	return w.changeCronJob(ctx, ref, func(job *batchv1.CronJob, patch client.Patch) error {
		return w.Side.Status().Patch(ctx, job, patch, client.FieldOwner(v1alpha1.FieldManager))
	}, change)
}

func (w Workloads) askController(ctx context.Context, ref objects.Ref) error {
	return w.changeRuns(ctx, ref, func(job *batchv1.CronJob) bool {
		if asked(job) {
			return false
		}
		id := uuid.NewUUID()
		job.Status.Active = append(job.Status.Active, corev1.ObjectReference{
			APIVersion: batchv1.SchemeGroupVersion.String(), Kind: "Job", Namespace: job.Namespace, Name: neverWas + string(id), UID: id,
		})
		return true
	})
}

func asked(job *batchv1.CronJob) bool {
	return slices.ContainsFunc(job.Status.Active, func(o corev1.ObjectReference) bool { return strings.HasPrefix(o.Name, neverWas) })
}

func (w Workloads) answered(ctx context.Context, ref objects.Ref) error {
	const pause = 100 * time.Millisecond
	return wait.PollUntilContextCancel(ctx, pause, true, func(ctx context.Context) (bool, error) {
		job := &batchv1.CronJob{}
		err := w.Side.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, job)
		if apierrors.IsNotFound(err) || err == nil && !asked(job) {
			return true, nil
		}
		return false, err
	})
}

// noteRuns makes up for a status that the controller could not write, because the CronJob was
// suspended between its Job and that.
func (w Workloads) noteRuns(ctx context.Context, all []objects.Ref) error {
	if len(all) == 0 {
		return nil
	}
	jobs, err := JobsByOwner(ctx, w.Side)
	if err != nil {
		return err
	}
	for _, ref := range all {
		err := w.changeRuns(ctx, ref, func(job *batchv1.CronJob) bool {
			noted := false
			for i := range jobs[job.UID] {
				if due := dueAt(job, &jobs[job.UID][i]); due != nil && count(job, due) {
					noted = true
				}
			}
			return noted
		})
		if err == nil {
			err = w.changeCronJob(ctx, ref, func(job *batchv1.CronJob, patch client.Patch) error {
				return w.Side.Patch(ctx, job, patch, client.FieldOwner(v1alpha1.FieldManager))
			}, settled)
		}
		if err != nil {
			return fmt.Errorf("noting the latest run of %s: %w", ref, err)
		}
	}
	return nil
}

func settled(job *batchv1.CronJob) bool {
	if _, asleep := job.Annotations[v1alpha1.AnnotationSuspend]; !asleep {
		return false // someone has woken it
	}
	job.Annotations[v1alpha1.AnnotationSettled] = "true"
	return true
}

// JobsByOwner are the Jobs of a side, by the UID of what controls them.
func JobsByOwner(ctx context.Context, c client.Client) (map[types.UID][]batchv1.Job, error) {
	jobs, err := cluster.List[batchv1.Job](ctx, c, &batchv1.JobList{})
	all := map[types.UID][]batchv1.Job{}
	for i := range jobs {
		if owner := metav1.GetControllerOf(&jobs[i]); owner != nil {
			all[owner.UID] = append(all[owner.UID], jobs[i])
		}
	}
	return all, err
}

// dueAt is when a CronJob's Job was to begin; nil for one that people made of it. Before Kubernetes
// 1.28, only its name says so.
func dueAt(of *batchv1.CronJob, job *batchv1.Job) *metav1.Time {
	at, err := time.Parse(time.RFC3339, job.Annotations[batchv1.CronJobScheduledTimestampAnnotation])
	if err != nil {
		minutes, err := strconv.ParseInt(strings.TrimPrefix(job.Name, of.Name+"-"), 10, 64)
		if err != nil {
			return nil
		}
		at = time.Unix(minutes*60, 0)
	}
	if at.After(job.CreationTimestamp.Add(time.Minute)) { // it was made before, which only people do
		return nil
	}
	return &metav1.Time{Time: at}
}

// countsFrom is the moment after which the controller looks for missed runs, and starts the latest.
func countsFrom(job *batchv1.CronJob) *metav1.Time {
	if job.Status.LastScheduleTime != nil {
		return job.Status.LastScheduleTime
	}
	return &job.CreationTimestamp
}

// count has a CronJob count from a moment, unless it counts from a later one of its own runs.
func count(job *batchv1.CronJob, from *metav1.Time) bool {
	if last := job.Status.LastScheduleTime; last != nil && !last.Before(from) {
		return false
	}
	job.Status.LastScheduleTime = from
	return true
}

// learnRuns has a CronJob count from where that of the other side does: no one has run what was due
// since then. Nothing is made up for where the other side has none, or is nil: what it ran is not
// known.
func (w Workloads) learnRuns(ctx context.Context, ref objects.Ref, other *objectsync.Side) error {
	from := &metav1.Time{Time: time.Now()}
	if other != nil {
		theirs := &batchv1.CronJob{}
		err := other.Get(ctx, types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, theirs)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("asking the other cluster for its runs: %w", err)
		}
		if err == nil {
			from = countsFrom(theirs)
		}
	}
	return w.changeRuns(ctx, ref, func(job *batchv1.CronJob) bool { return count(job, from) })
}
