package agentset

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/workload"
)

// SilentError says that agents do not report, so that nothing is known of their nodes.
type SilentError struct {
	Missing []Silent
	// For is how long a run has not heard of one that reported before. Zero means that they are
	// waited for at its beginning.
	For time.Duration
}

func (e *SilentError) Error() string {
	var texts, named []string
	for _, m := range e.Missing {
		text := m.String()
		if m.Cause == workload.NoPod && slices.Contains(named, m.Reason) { // who refuses pods refuses those of all nodes
			text = "node " + m.Node + ": the same"
		}
		texts, named = append(texts, text), append(named, m.Reason)
	}
	text := ""
	if e.For > 0 {
		text = fmt.Sprintf("nothing has been heard for %s of ", e.For.Round(time.Second))
	}
	text += strings.Join(texts[:min(most, len(texts))], "; ")
	if more := len(texts) - most; more > 0 {
		text += fmt.Sprintf("; and %d more agents", more)
	}
	return text
}

func (*SilentError) ExitCode() int { return fault.ExitError }

const resume = "run the same command again, or do without agents, when nothing is probed: apply --without-agent, or " +
	"spec.proof.agents: Disabled"

func (e *SilentError) Advice() string {
	const in = "kubectl logs -n " + v1alpha1.SystemNamespace + " POD"
	hint := workload.Advice([]workload.Hint{
		{
			Cause: workload.NoImage,
			Text: "push the image to where nodes pull from, or load it into them, and name it in spec.image, " +
				"and pull secrets for it in spec.imagePullSecrets",
		},
		{
			Cause: workload.NoPod,
			Text: "kubectl describe daemonset -n " + v1alpha1.SystemNamespace +
				" shows who refuses pods: let them in, by label or quota",
		},
		{Cause: workload.Unscheduled, Text: "make room on the nodes: an agent asks for 50m of CPU time and 32Mi"},
		{Cause: workload.Ends, Text: in + " --previous tells more"},
		{Cause: workload.Mute, Text: in + " tells whether it reaches the API server and may write NodeReports"},
	}, "", func(c workload.Cause) bool {
		return slices.ContainsFunc(e.Missing, func(s Silent) bool { return s.Cause == c })
	})
	if hint == "" {
		return "when the cause is removed, " + resume
	}
	return hint + "; then " + resume
}
