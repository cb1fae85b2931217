package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/fieldmanagers"
)

// KnowTakenBack has plans replace the pods of workloads one by one whose restart was undone before.
func (s *State) KnowTakenBack(all []v1alpha1.TakenBackStatus) {
	s.takenBack = map[types.UID]string{}
	for i := range all {
		s.takenBack[types.UID(all[i].UID)] = takenBackBy(all[i].By)
	}
}

func takenBackBy(by string) string {
	return "its restart was taken back (spec.template is written by " + by + ")"
}

// byPods says why the pods of a workload are replaced one by one; nothing, if a rollout does it.
func (s *State) byPods(a adapter) (why string, takenBack bool) {
	if why := s.takenBack[a.object().GetUID()]; why != "" {
		return why, true
	}
	if wish(a) == v1alpha1.RestartPods {
		return "its annotation " + v1alpha1.AnnotationRestart + " asks for that", false
	}
	return "", false
}

// wish is what the annotation of a workload says of its restart.
func wish(a adapter) string { return a.object().GetAnnotations()[v1alpha1.AnnotationRestart] }

// stands fails once the restart of this step is on the template no longer. An owner writes the
// template as it knows it, and the controller leads back to the pods of before.
func (s *restartStep) stands(ctx context.Context, f *finding) error {
	if s.wrote.IsZero() || s.workload.ByPods != "" || !restartedAt(f.adapter).Before(s.wrote) {
		return nil
	}
	by := managersOf(f.adapter)
	if s.TakenBack != nil {
		err := s.TakenBack(ctx, v1alpha1.TakenBackStatus{
			UID: string(s.workload.UID), Workload: s.workload.String(), By: by, At: metav1.NewTime(s.now().Truncate(time.Second)),
		})
		if err != nil {
			return err
		}
	}
	s.workload.ByPods, s.workload.TakenBack = takenBackBy(by), true
	s.evicting, s.since = true, s.now()
	return engine.Anew("%s: %s; its pods are replaced one by one", s.workload, s.workload.ByPods)
}

// managersOf names who writes the template of a workload.
func managersOf(a adapter) string {
	by := fieldmanagers.Of(a.object(), "spec", "template")
	if owner := metav1.GetControllerOf(a.object()); owner != nil {
		by += fmt.Sprintf(", its owner is %s %s", owner.Kind, owner.Name)
	}
	return by
}

// replaceNext evicts the oldest stale pod once the workload has all of its pods. Where a restart
// was taken back, pods that cannot be evicted within the timeout keep what they have, and hold up
// nothing.
func (s *restartStep) replaceNext(ctx context.Context, f *finding) error {
	s.headway(len(f.stale))
	for i := range f.pods {
		if !f.pods[i].DeletionTimestamp.IsZero() {
			return engine.NotYet("pod %s of %s has not ended yet", f.pods[i].Name, s.workload)
		}
	}
	if err := complete(f.present()); err != nil {
		return err
	}
	pod := slices.MinFunc(f.stale, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	s.evicting = true
	err := s.Evict(&pod, s.changes).Do(ctx)
	switch {
	case err == nil:
		return engine.NotYet("pod %s of %s is evicted; the next one goes when it is replaced", pod.Name, s.workload)
	case s.workload.TakenBack && (!engine.Retryable(err) || s.now().Sub(s.since) >= s.timeout()):
		s.left = err.Error()
		return nil
	}
	return err
}

// headway has the timeout begin anew when another pod is done with.
func (s *restartStep) headway(outstanding int) {
	if outstanding != s.outstanding {
		s.outstanding, s.since = outstanding, s.now()
	}
}

// within ends the wait for a rollout, or for one of the pods that are replaced one by one, after
// the timeout: the deadline of the step is for all of them.
func (s *restartStep) within(err error) error {
	if err == nil || !engine.Retryable(err) {
		return err
	}
	if s.since.IsZero() {
		s.since = s.now()
	}
	if s.now().Sub(s.since) < s.timeout() {
		return err
	}
	return &engine.DeadlineError{After: s.timeout().String(), Err: errors.New(err.Error())}
}
