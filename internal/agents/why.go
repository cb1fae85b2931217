package agents

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
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
	if silent.Cause, silent.Reason = seen.why(k, known, s.wait()); silent.Reason == "" {
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
