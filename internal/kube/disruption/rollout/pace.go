package rollout

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
)

type replacement struct {
	pod   *corev1.Pod
	since time.Time
}

func (s *drainStep) paced(ctx context.Context, p *corev1.Pod, asked map[types.UID]bool) error {
	ref := metav1.GetControllerOfNoCopy(p)
	if s.leaving.AtOnce == 0 || ref == nil || !p.DeletionTimestamp.IsZero() {
		return s.send(ctx, p, asked)
	}
	if _, its := s.underway[ref.UID]; !its && len(s.underway) >= s.leaving.AtOnce {
		var first *corev1.Pod
		for _, other := range s.underway {
			if first == nil || key(other.pod) < key(first) {
				first = other.pod
			}
		}
		return engine.NotYet("pod %s goes after others, and what replaces %s is not ready", key(p), key(first))
	}
	again := asked[ref.UID]
	err := s.send(ctx, p, asked)
	if err == nil && !again && podReady(p) { // what was broken before is not waited for
		if s.underway == nil {
			s.underway = map[types.UID]replacement{}
		}
		s.underway[ref.UID] = replacement{p, s.now()}
	}
	return err
}

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// arrived forgets owners whose pods are ready again or unschedulable, or whose time is up.
func (s *drainStep) arrived(ctx context.Context) error {
	for uid, r := range s.underway {
		if s.now().Sub(r.since) > s.timeout() {
			delete(s.underway, uid)
			continue
		}
		p := r.pod
		e := &evictStep{Deps: s.Deps, pod: slimPod(p)}
		still, err := e.current(ctx)
		if err != nil {
			return err
		}
		ref := metav1.GetControllerOf(p)
		d, err := e.demand(ctx, ref)
		if err != nil {
			return err
		}
		ready, stuck, err := s.count(ctx, p, ref, d)
		if err != nil {
			return err
		}
		if still == nil && ready+stuck >= d.want {
			delete(s.underway, uid)
		}
	}
	return nil
}
