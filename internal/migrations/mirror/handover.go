package mirror

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/kube/objectsync/runonce"
)

type singletons struct {
	runonce.Workloads

	// other is the other side, whose CronJobs say what has run.
	other *objectsync.Side
	about string
}

func (c *copying) onSource() singletons { return c.singletons("source") }
func (c *copying) onTarget() singletons { return c.singletons("target") }

func (c *copying) singletons(about string) singletons {
	s := singletons{Workloads: runonce.Workloads{Rules: c.copier.Rules, Side: c.copier.Source}, other: c.copier.Target, about: about}
	if about == "target" {
		s.Side, s.other = s.other, s.Side
	}
	return s
}

// ending is how long what runs may take to end: Jobs that a CronJob has started are let run.
const ending = 30 * time.Minute

// sleep ends singletons, and waits until none of them runs any more. prefix begins the step's ID.
func (s singletons) sleep(prefix string) engine.Step {
	return engine.Interruptible{Write: &engine.Write{
		Name: prefix + "sleep", About: "End singletons in the " + s.about, Limit: ending, Holds: s.ended,
		Write: func(ctx context.Context) error {
			if _, err := s.Sleep(ctx); err != nil {
				return err
			}
			return s.Settle(ctx)
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "singletons in the " + s.about + ": no pods, no schedule"},
			engine.Change{Verb: "patch", Object: "status of each CronJob among them: the latest run"},
		),
	}}
}

// wake starts singletons, CronJobs with what the other side has run.
func (s singletons) wake(prefix string) engine.Step {
	return &engine.Write{
		Name: prefix + "wake", About: "Start singletons in the " + s.about,
		Holds: func(ctx context.Context) error {
			asleep, _, err := s.Asleep(ctx)
			if err == nil && len(asleep) > 0 {
				return engine.NotYet("%s sleeps in the %s", asleep[0], s.about)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			_, err := s.Wake(ctx, s.other)
			return err
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "status of each CronJob among singletons in the " + s.about + ": the latest run of the other cluster"},
			engine.Change{Verb: "patch", Object: "singletons in the " + s.about + ": as they were"},
		),
	}
}

func (s singletons) ended(ctx context.Context) error {
	asleep, running, err := s.Asleep(ctx)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return engine.NotYet("%s runs in the %s", running[0], s.about)
	}
	unsettled, err := s.Unsettled(ctx)
	if err != nil {
		return err
	}
	if len(unsettled) > 0 {
		return engine.NotYet("the CronJob controller of the %s has not seen yet that %s is suspended", s.about, unsettled[0])
	}
	jobs, err := runonce.JobsByOwner(ctx, s.Side)
	if err != nil {
		return err
	}
	for _, ref := range asleep {
		left, err := s.left(ctx, ref, jobs)
		if err != nil {
			return err
		}
		if left > 0 {
			return engine.NotYet("%d of %s still run in the %s", left, ref, s.about)
		}
	}
	return nil
}

// left is how many pods, or jobs, of a singleton there still are. Pods that are ending still run.
func (s singletons) left(ctx context.Context, ref objects.Ref, jobs map[types.UID][]batchv1.Job) (int, error) {
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	var err error
	var selector *metav1.LabelSelector
	switch kind, _, _ := strings.Cut(ref.Resource, "."); kind {
	case "deployments":
		d := &appsv1.Deployment{}
		err = s.Side.Get(ctx, key, d)
		selector = d.Spec.Selector
	case "statefulsets":
		d := &appsv1.StatefulSet{}
		err = s.Side.Get(ctx, key, d)
		selector = d.Spec.Selector
	case "cronjobs":
		c := &batchv1.CronJob{}
		err = client.IgnoreNotFound(s.Side.Get(ctx, key, c))
		return unfinished(jobs[c.UID]), err
	}
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	return s.pods(ctx, ref.Namespace, selector)
}

func unfinished(jobs []batchv1.Job) int {
	n := 0
	for i := range jobs {
		if !slices.ContainsFunc(jobs[i].Status.Conditions, func(c batchv1.JobCondition) bool {
			return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
		}) {
			n++
		}
	}
	return n
}

func (s singletons) pods(ctx context.Context, namespace string, of *metav1.LabelSelector) (int, error) {
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return 0, err
	}
	pods := &corev1.PodList{}
	if err := s.Side.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
		return 0, fmt.Errorf("pods of namespace %s: %w", namespace, err)
	}
	left := 0
	for i := range pods.Items {
		if phase := pods.Items[i].Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			left++
		}
	}
	return left, nil
}
