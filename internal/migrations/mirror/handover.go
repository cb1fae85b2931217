package mirror

import (
	"context"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/objectsync"
)

// direction of a handover.
type direction string

const (
	forth direction = "handover/"
	back  direction = "back/handover/"
)

// singletons are what must not run twice, on one side.
type singletons struct {
	rules *objectsync.Rules
	side  *objectsync.Side
	about string
}

func (c *copying) onSource() singletons { return c.singletons("source") }
func (c *copying) onTarget() singletons { return c.singletons("target") }

func (c *copying) singletons(about string) singletons {
	if c.copier == nil { // a plan that only names its phases
		return singletons{about: about}
	}
	s := singletons{rules: c.copier.Rules, side: c.copier.Source, about: about}
	if about == "target" {
		s.side = c.copier.Target
	}
	return s
}

// ending is how long what runs may take to end: Jobs that a CronJob has started are let run.
const ending = 30 * time.Minute

// sleepStep ends singletons, and waits until none of them runs any more.
type sleepStep struct {
	to direction
	of singletons
}

var _ engine.Timed = (*sleepStep)(nil)

func (s *sleepStep) ID() string            { return string(s.to) + "sleep" }
func (s *sleepStep) Title() string         { return "End what must not run twice in the " + s.of.about }
func (*sleepStep) Deadline() time.Duration { return ending }

func (s *sleepStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *sleepStep) Do(ctx context.Context) error {
	_, err := s.of.rules.Sleep(ctx, s.of.side)
	return err
}

func (s *sleepStep) Verify(ctx context.Context) error {
	asleep, running, err := s.of.rules.Asleep(ctx, s.of.side)
	if err != nil {
		return err
	}
	if len(running) > 0 {
		return engine.NotYet("%s runs in the %s", running[0], s.of.about)
	}
	for _, ref := range asleep {
		left, err := s.left(ctx, ref)
		if err != nil {
			return err
		}
		if left > 0 {
			return engine.NotYet("%d of %s still run in the %s", left, ref, s.of.about)
		}
	}
	return nil
}

// left is how many pods, or jobs, of a singleton there still are. Pods that are ending still run.
func (s *sleepStep) left(ctx context.Context, ref objectsync.Ref) (int, error) {
	key := client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}
	var err error
	var selector *metav1.LabelSelector
	switch kind, _, _ := strings.Cut(ref.Resource, "."); kind {
	case "deployments":
		d := &appsv1.Deployment{}
		err = s.of.side.Get(ctx, key, d)
		selector = d.Spec.Selector
	case "statefulsets":
		d := &appsv1.StatefulSet{}
		err = s.of.side.Get(ctx, key, d)
		selector = d.Spec.Selector
	case "cronjobs":
		c := &batchv1.CronJob{}
		err = client.IgnoreNotFound(s.of.side.Get(ctx, key, c))
		return len(c.Status.Active), err
	}
	if err != nil {
		return 0, client.IgnoreNotFound(err)
	}
	return s.pods(ctx, ref.Namespace, selector)
}

func (s *sleepStep) pods(ctx context.Context, namespace string, of *metav1.LabelSelector) (int, error) {
	selector, err := metav1.LabelSelectorAsSelector(of)
	if err != nil {
		return 0, err
	}
	pods := &corev1.PodList{}
	if err := s.of.side.List(ctx, pods, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: selector}); err != nil {
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

// wakeStep lets singletons run.
type wakeStep struct {
	to direction
	of singletons
}

func (s *wakeStep) ID() string    { return string(s.to) + "wake" }
func (s *wakeStep) Title() string { return "Let what must not run twice run in the " + s.of.about }

func (s *wakeStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *wakeStep) Do(ctx context.Context) error {
	_, err := s.of.rules.Wake(ctx, s.of.side)
	return err
}

func (s *wakeStep) Verify(ctx context.Context) error {
	asleep, _, err := s.of.rules.Asleep(ctx, s.of.side)
	if err == nil && len(asleep) > 0 {
		return engine.NotYet("%s sleeps in the %s", asleep[0], s.of.about)
	}
	return err
}
