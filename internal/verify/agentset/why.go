package agentset

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/workload"
)

// Why says why an agent is not heard of, as far as that can be seen now.
func (s *Set) Why(ctx context.Context, node string, origin v1alpha1.ProbeOrigin) Silent {
	silent := Silent{Node: node, Origin: origin}
	v, err := s.View(ctx)
	if err != nil {
		silent.Reason = err.Error()
		return silent
	}
	seen := newIndex(&v)
	k := agentKey{node, origin}
	known := &agent{speaks: uidOf(seen.pods[k])} // and that was long ago
	silent.Cause, silent.Reason = seen.why(k, known, s.wait())
	if wrong := s.wrongRight(ctx); wrong != "" && (silent.Cause == workload.Mute || silent.Cause == "") {
		silent.Reason = wrong + ": it may not report; the same command recreates it"
	}
	if silent.Reason == "" {
		silent.Reason = "nothing is to be seen of why"
	}
	return silent
}

func uidOf(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return string(pod.UID)
}

// wrongRight names an object missing or changed that lets agents report; empty if none, or if it
// cannot be seen.
func (s *Set) wrongRight(ctx context.Context) string {
	for _, build := range []func([]string) ([]client.Object, error){objects{s}.rights, objects{s}.policy} {
		all, err := s.apply("", "", build).Pairs(ctx)
		if err != nil {
			return ""
		}
		for _, p := range all {
			if p.Have == nil {
				return workload.NameOf(p.Want) + " is missing"
			}
			if same, err := workload.Same(ctx, s.Cluster, p); err == nil && !same {
				return workload.NameOf(p.Want) + " was changed"
			}
		}
	}
	return ""
}

// Ended names an agent which others call, and whose process has ended since a time by the clock of
// its node.
func (s *Set) Ended(ctx context.Context, since time.Time) string {
	pods, err := s.podsOf(ctx, v1alpha1.RoleProbe, v1alpha1.RoleSingle)
	if err != nil {
		return ""
	}
	for i := range pods {
		p := &pods[i]
		for _, c := range p.Status.ContainerStatuses {
			for _, t := range []*corev1.ContainerStateTerminated{c.State.Terminated, c.LastTerminationState.Terminated} {
				if t != nil && !t.FinishedAt.Time.Before(since) {
					return "node " + p.Spec.NodeName + ": " + workload.Ended(p, t)
				}
			}
		}
	}
	return ""
}
