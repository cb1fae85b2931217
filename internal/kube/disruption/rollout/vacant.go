package rollout

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine"
)

// Vacancy says which nodes become empty by what others do.
type Vacancy struct {
	Name, About string
	Nodes       []string
	// Leaves reports whether a pod has to leave its node.
	Leaves func(*corev1.Pod) bool
	Turns  *Turns
	// Also, if set, reports whether what is left is news to go on with although no node is empty.
	Also func(left map[string][]*corev1.Pod) bool
	Say  func(left map[string][]*corev1.Pod) string
}

// vacancyLimit bounds the wait for what others do in their own time: releases come every few weeks.
const vacancyLimit = 90 * 24 * time.Hour

// Vacant makes the step that watches until one of some nodes has no pod left that has to leave.
func Vacant(v Vacancy) *engine.Wait {
	return &engine.Wait{Name: v.Name, About: v.About, Limit: vacancyLimit, Again: true, For: v.wait}
}

// wait watches for as long as a look at how far it is may take.
func (v *Vacancy) wait(ctx context.Context) error {
	var view *view
	for _, node := range v.Nodes {
		var err error
		view, _, err = v.Turns.join(ctx, node)
		defer v.Turns.leave(node)
		if err != nil {
			return err
		}
	}
	end := time.NewTimer(keepAt)
	defer end.Stop()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		left, some := v.left(view)
		if some || v.Also != nil && v.Also(left) {
			return nil
		}
		select {
		case <-ctx.Done():
			return engine.NotYet("%s", v.Say(left))
		case <-end.C:
			return engine.NotYet("%s", v.Say(left))
		case <-ticker.C:
		}
	}
}

func (v *Vacancy) left(view *view) (left map[string][]*corev1.Pod, some bool) {
	left = map[string][]*corev1.Pod{}
	for _, node := range v.Nodes {
		for _, p := range view.on(node) {
			if v.Leaves(p) {
				left[node] = append(left[node], p)
			}
		}
		some = some || len(left[node]) == 0
	}
	return left, some
}
