package kubeadmgate

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/safety/lease"
)

// step has a pod change files of one node. A pod that works there already goes on: what has renamed
// a file is the only one that can put it back while the API is away.
type step struct {
	pod       taskpod.Task
	image     pull.Image
	id, title string
	args      []string
	// already, if set, says from outside whether there is nothing to do, and proof whether it is
	// done.
	already, proof func(context.Context) error
	// before, if set, has to hold before the pod begins.
	before func(context.Context) error
	edits  []engine.Change
	// reads says that nothing on the node is written.
	reads bool
	// byHand says how the gate is left to people.
	byHand string
}

var _ engine.Abandoner = (*step)(nil)

func (s *step) ID() string    { return s.id }
func (s *step) Title() string { return s.title }

// Deadline has room for the change, for taking it back, and for what kubelets say of static pods
// two minutes late.
func (s *step) Deadline() time.Duration { return taskpod.Limit + 2*patience + 3*time.Minute }

func (s *step) State(ctx context.Context) (engine.State, error) {
	if s.already == nil {
		return engine.Pending, nil
	}
	all, err := s.pod.Find(ctx)
	if err != nil || len(all) > 0 {
		return engine.Pending, err
	}
	return engine.StateOf(s.already(ctx))
}

func (s *step) Preview() ([]engine.Change, error) {
	return append(slices.Clone(s.edits), engine.Change{
		Verb: "run", Object: "Pod on Node " + s.pod.Node, Body: map[string]any{"args": append([]string{"node"}, s.args...)},
	}), nil
}

func (s *step) Do(ctx context.Context) error {
	lease.Of(ctx).Outlast(ctx, lease.Restart)
	made := s.pod.Object(s.spec())
	all, err := s.pod.Find(ctx)
	if err != nil {
		return err
	}
	for i := range all {
		if ended(&all[i]) { // of an earlier run
			continue
		}
		if slices.Equal(all[i].Spec.Containers[0].Args, made.Spec.Containers[0].Args) {
			return nil
		}
		return engine.NotYet("pod %s on node %s still works at something else", all[i].Name, s.pod.Node)
	}
	if s.before != nil {
		if err := s.before(ctx); err != nil {
			return err
		}
	}
	return s.pod.Start(ctx, made)
}

func ended(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

func (s *step) Verify(ctx context.Context) error {
	lock := lease.Of(ctx)
	lock.Outlast(ctx, lease.Restart)
	_, err := s.pod.Report(ctx)
	var failed *taskpod.TaskError
	if errors.As(err, &failed) {
		return s.failed(ctx, failed)
	}
	if err != nil {
		return err
	}
	if s.proof != nil {
		if err := s.proof(ctx); err != nil {
			return err
		}
	}
	lock.Outlast(ctx, lease.Usual)
	return s.pod.End(ctx)
}

func (s *step) failed(ctx context.Context, why *taskpod.TaskError) error {
	hint := "nothing was begun on other nodes. When the cause is removed, run the same command again: it goes on with this node. " +
		"To do the gate by hand instead, " + s.byHand
	if s.reads {
		hint = "nothing was changed. Change by hand what is not usual there; or, to do the gate by hand, " + s.byHand
	}
	return &fault.Hinted{Err: errors.Join(why, s.pod.End(ctx)), Hint: hint}
}

// Abandon ends a pod that has not begun. One that runs ends by itself, since its node may be in
// between.
func (s *step) Abandon(ctx context.Context) error {
	all, err := s.pod.Find(ctx)
	if err != nil {
		return err
	}
	if s.reads || !slices.ContainsFunc(all, func(p corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }) {
		return s.pod.End(ctx)
	}
	return nil
}
