package workload

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Cause is why a pod does not do what it is there for, in one word.
type Cause string

// The causes that pods have in common.
const (
	// NoPod means that there is no pod, or that it has been refused.
	NoPod Cause = "NoPod"
	// Unscheduled means that the pod finds no room on a node.
	Unscheduled Cause = "Unscheduled"
	// NoImage means that the kubelet does not get the image.
	NoImage Cause = "NoImage"
	// Starting means that the pod has not started for another reason, or is to be replaced.
	Starting Cause = "Starting"
	// Ends means that the program ends instead of running.
	Ends Cause = "Ends"
	// Mute means that the program runs and does not report.
	Mute Cause = "Mute"
	// Trouble means that the program reports that it cannot do what it should.
	Trouble Cause = "Trouble"
)

// Hint is advice for a cause.
type Hint struct {
	Cause Cause
	Text  string
}

// Advice is the first hint whose cause is among those of what is down, or otherwise.
func Advice(hints []Hint, otherwise string, is func(Cause) bool) string {
	for _, h := range hints {
		if is(h.Cause) {
			return h.Text
		}
	}
	return otherwise
}

// Waiting says why a pod does not run, with what was last heard of it; nothing if it runs. Nothing
// but the news says that a registry does not answer, which keeps kubelets pulling for minutes.
func Waiting(pod *corev1.Pod, news string) (Cause, string) {
	cause, reason := NotRunning(pod)
	switch {
	case cause != Starting:
		return cause, reason
	case strings.HasPrefix(news, "Pulling image "):
		return NoImage, fmt.Sprintf("pod %s has no image %s yet: %s", pod.Name, pod.Spec.Containers[0].Image, news)
	}
	return cause, And(reason, news)
}

// NotRunning says why a pod does not run; nothing if it does.
func NotRunning(pod *corev1.Pod) (Cause, string) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return Unscheduled, And(fmt.Sprintf("pod %s is not scheduled", pod.Name), c.Message)
		}
	}
	if pod.Status.Phase == corev1.PodFailed {
		return Ends, And(fmt.Sprintf("pod %s has failed", pod.Name), strings.TrimSpace(pod.Status.Reason+" "+pod.Status.Message))
	}
	for i := range pod.Status.ContainerStatuses {
		c := &pod.Status.ContainerStatuses[i]
		switch {
		case c.State.Waiting != nil:
			return waits(pod, c)
		case c.State.Terminated != nil:
			return Ends, Ended(pod, c.State.Terminated)
		}
	}
	if pod.Status.Phase != corev1.PodRunning {
		return Starting, fmt.Sprintf("pod %s has not started", pod.Name)
	}
	return "", ""
}

// waits says what a container waits for, by the reasons of k8s.io/kubernetes
// pkg/kubelet/images/types.go and pkg/kubelet/container/sync_result.go.
func waits(pod *corev1.Pod, c *corev1.ContainerStatus) (Cause, string) {
	w := c.State.Waiting
	switch w.Reason {
	case "ImagePullBackOff", "ErrImagePull", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError", "RegistryUnavailable",
		"SignatureValidationFailed":
		return NoImage, And(fmt.Sprintf("pod %s has no image %s", pod.Name, pod.Spec.Containers[0].Image), And(w.Reason, w.Message))
	case "CrashLoopBackOff":
		if t := c.LastTerminationState.Terminated; t != nil {
			return Ends, Ended(pod, t)
		}
		return Ends, And(fmt.Sprintf("pod %s ends again and again", pod.Name), w.Message)
	}
	return Starting, And(fmt.Sprintf("pod %s has not started", pod.Name), And(w.Reason, w.Message))
}

// Ended says how a container ended.
func Ended(pod *corev1.Pod, t *corev1.ContainerStateTerminated) string {
	last := strings.TrimSpace(t.Message)
	if i := strings.LastIndexByte(last, '\n'); i >= 0 { // of logs that stand in for a message
		last = last[i+1:]
	}
	if t.Reason != "" && t.Reason != "Error" { // such as OOMKilled
		last = strings.TrimSpace(t.Reason + " " + last)
	}
	return And(fmt.Sprintf("pod %s ended with code %d", pod.Name, t.ExitCode), last)
}

// longest is how much of what others say is reported, which may be a whole log.
const longest = 400

// And adds a reason that another component gave, if there is one.
func And(text, why string) string {
	why = strings.TrimSpace(why)
	if runes := []rune(why); len(runes) > longest {
		why = string(runes[:longest]) + "…"
	}
	switch {
	case why == "":
		return text
	case text == "":
		return why
	}
	return text + ": " + why
}
