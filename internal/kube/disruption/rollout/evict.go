package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// Evict makes the step that evicts a pod and waits for its replacement, if it has an owner.
func (t Deps) Evict(pod *corev1.Pod, c Changes) engine.Step {
	return &evictStep{Deps: t, pod: slimPod(pod), changes: c}
}

type evictStep struct {
	Deps
	pod     corev1.Pod
	changes Changes
}

var (
	_ engine.Previewer = (*evictStep)(nil)
	_ engine.Timed     = (*evictStep)(nil)
	_ engine.Waiter    = (*evictStep)(nil)
)

func (s *evictStep) key() types.NamespacedName { return client.ObjectKeyFromObject(&s.pod) }

func (s *evictStep) ID() string { return "evict/" + s.key().String() }
func (s *evictStep) Title() string {
	return fmt.Sprintf("Evict pod %s: it has %s", s.key(), s.changes.what())
}

func (s *evictStep) Deadline() time.Duration { return s.timeout() }

// Waits lets an interrupted run end at once. An eviction is found again on the pod.
func (s *evictStep) Waits() {}

func (s *evictStep) State(ctx context.Context) (engine.State, error) {
	err := s.Verify(ctx)
	var missing *missingError
	switch {
	case err == nil:
		return engine.Done, nil
	case errors.As(err, &missing):
		return engine.Pending, nil
	}
	return engine.Unknown, err
}

func (s *evictStep) Do(ctx context.Context) error {
	pod, err := s.current(ctx)
	if err != nil || pod == nil || !pod.DeletionTimestamp.IsZero() || len(staleReferences(pod, s.changes)) == 0 {
		return err
	}
	if err := s.beside(ctx); err != nil {
		return err
	}
	err = s.Client.SubResource("eviction").Create(ctx, pod, s.eviction())
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsTooManyRequests(err):
		return engine.NotYet("pod %s cannot be evicted now: %w", s.key(), withCauses(err))
	case err != nil:
		return fmt.Errorf("evicting pod %s: %w", s.key(), err)
	}
	return nil
}

func (s *evictStep) Verify(ctx context.Context) error {
	pod, err := s.current(ctx)
	switch {
	case err != nil:
		return err
	case pod == nil:
		return s.replaced(ctx)
	case !pod.DeletionTimestamp.IsZero():
		return missing("pod %s has not ended yet", s.key())
	case len(staleReferences(pod, s.changes)) > 0:
		return missing("pod %s has %s", s.key(), s.changes.what())
	}
	return nil
}

func (s *evictStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "Eviction " + s.key().String(), Body: s.eviction()}}, nil
}

func (s *evictStep) eviction() *policyv1.Eviction {
	return &policyv1.Eviction{
		TypeMeta:      metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "Eviction"},
		ObjectMeta:    metav1.ObjectMeta{Namespace: s.pod.Namespace, Name: s.pod.Name},
		DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.pod.UID))},
	}
}

// missingError says what is outstanding, where a look as such went well.
type missingError struct{ text string }

func (e *missingError) Error() string { return e.text }

func missing(format string, args ...any) error {
	return engine.NotYet("%w", &missingError{fmt.Sprintf(format, args...)})
}

// current is the pod, unless it has ended, is gone, or has become another one of the same name.
func (s *evictStep) current(ctx context.Context) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := s.Client.Get(ctx, s.key(), pod)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("pod %s: %w", s.key(), err)
	case pod.UID != s.pod.UID || ended(pod):
		return nil, nil
	}
	return pod, nil
}

// replaced returns nil if the owner has a ready pod. It counts pods: the owner's status may lag.
func (s *evictStep) replaced(ctx context.Context) error {
	ref := metav1.GetControllerOf(&s.pod)
	if ref == nil {
		return nil
	}
	want, err := s.wanted(ctx, ref)
	if err != nil || want == 0 {
		return err
	}
	ready := 0
	var here bool
	err = each(ctx, s.Client, &corev1.PodList{}, func(p *corev1.Pod) {
		if metav1.GetControllerOfNoCopy(p) == nil || metav1.GetControllerOfNoCopy(p).UID != ref.UID || !podReady(p) {
			return
		}
		ready++
		here = here || p.Name == s.pod.Name || ref.Kind == KindDaemonSet && p.Spec.NodeName == s.pod.Spec.NodeName
	}, client.InNamespace(s.pod.Namespace))
	if err != nil {
		return fmt.Errorf("pods of %s %s: %w", ref.Kind, ref.Name, err)
	}
	if here || ready >= want {
		return nil
	}
	return missing("%s %s has %d of %d pods ready after the eviction of %s", ref.Kind, ref.Name, ready, want, s.pod.Name)
}

type demand struct {
	want     int
	ready    int
	known    bool
	selector labels.Selector
}

// wanted is how many ready pods the owner shall have; none, if it is gone.
func (s *evictStep) wanted(ctx context.Context, ref *metav1.OwnerReference) (int, error) {
	d, err := s.demand(ctx, ref)
	return d.want, err
}

// demand of an owner; none, if it is gone. Unknown owners and unfinished Jobs want one pod.
func (s *evictStep) demand(ctx context.Context, ref *metav1.OwnerReference) (demand, error) {
	var owner client.Object
	var read func() demand
	switch {
	case ref.APIVersion == appsv1.SchemeGroupVersion.String() && ref.Kind == kindReplicaSet:
		o := &appsv1.ReplicaSet{}
		owner, read = o, func() demand {
			return counted(replicas(o.Spec.Replicas), o.Status.ReadyReplicas, o.Spec.Selector)
		}
	case ref.APIVersion == appsv1.SchemeGroupVersion.String() && ref.Kind == KindStatefulSet:
		o := &appsv1.StatefulSet{}
		owner, read = o, func() demand {
			return counted(replicas(o.Spec.Replicas), o.Status.ReadyReplicas, o.Spec.Selector)
		}
	case ref.APIVersion == appsv1.SchemeGroupVersion.String() && ref.Kind == KindDaemonSet:
		o := &appsv1.DaemonSet{}
		owner, read = o, func() demand { return demand{want: int(o.Status.DesiredNumberScheduled)} }
	case ref.APIVersion == batchv1.SchemeGroupVersion.String() && ref.Kind == kindJob:
		o := &batchv1.Job{}
		owner, read = o, func() demand { return demand{want: jobWants(o)} }
	default:
		return demand{want: 1}, nil
	}
	err := s.Client.Get(ctx, types.NamespacedName{Namespace: s.pod.Namespace, Name: ref.Name}, owner)
	switch {
	case apierrors.IsNotFound(err):
		return demand{}, nil
	case err != nil:
		return demand{}, fmt.Errorf("%s %s/%s: %w", ref.Kind, s.pod.Namespace, ref.Name, err)
	case owner.GetUID() != ref.UID || !owner.GetDeletionTimestamp().IsZero():
		return demand{}, nil
	}
	return read(), nil
}

func counted(want, ready int32, selector *metav1.LabelSelector) demand {
	d := demand{want: int(want), ready: int(ready), known: true}
	if s, err := metav1.LabelSelectorAsSelector(selector); err == nil && !s.Empty() {
		d.selector = s
	}
	return d
}

func jobWants(job *batchv1.Job) int {
	for _, c := range job.Status.Conditions {
		if (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue {
			return 0
		}
	}
	if job.Spec.Suspend != nil && *job.Spec.Suspend {
		return 0
	}
	return 1
}

func withCauses(err error) error {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil {
		return err
	}
	var causes []string
	for _, c := range status.Status().Details.Causes {
		causes = append(causes, c.Message)
	}
	if len(causes) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(causes, "; "))
}
