package agents

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Reason says why the agents of a node are not heard of, as far as that can be seen now.
func (s *Set) Reason(ctx context.Context, node string) string {
	o, err := s.Reporting(ctx)
	if err != nil {
		return err.Error()
	}
	for _, m := range o.Missing {
		if m.Node == node && m.Cause != Mute {
			return m.Reason
		}
	}
	if wrong := s.wrongRight(ctx); wrong != "" {
		return wrong + ": they may not report; the same command makes it anew"
	}
	for _, m := range o.Missing {
		if m.Node == node {
			return m.Reason
		}
	}
	return "their pods run, and report no more"
}

// wrongRight says which of the objects that let agents report is not as it should be; nothing if all are, or if that cannot be seen.
func (s *Set) wrongRight(ctx context.Context) string {
	step := &applyStep{set: s, id: "agents/rights", build: s.rights}
	all, err := step.look(ctx)
	if err != nil {
		return ""
	}
	for _, p := range all {
		if p.have == nil {
			return nameOf(p.want) + " is missing"
		}
		if step.apply(ctx, p.want, client.DryRunAll) == nil && !equality.Semantic.DeepEqual(content(p.want), content(p.have)) {
			return nameOf(p.want) + " was changed"
		}
	}
	return ""
}

// Ended names an agent which others call, and whose process has ended since a time by the clock of its node.
func (s *Set) Ended(ctx context.Context, since time.Time) string {
	pods, err := s.pods(ctx)
	if err != nil {
		return ""
	}
	for i := range pods {
		p := &pods[i]
		if p.Labels[v1alpha1.LabelRole] != v1alpha1.RoleProbe {
			continue
		}
		for _, c := range p.Status.ContainerStatuses {
			for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t != nil && !t.FinishedAt.Time.Before(since) {
					return "node " + p.Spec.NodeName + ": " + ended(p, t)
				}
			}
		}
	}
	return ""
}
