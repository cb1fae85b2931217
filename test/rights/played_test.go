package rights

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/connectivity/testpod"
)

// onNode is on pods that replumb runs on a node to look there, or to clean it.
const onNode = "replumb.dev/on-node"

// crossing is what those of them do that stay, for as long as a cluster has two networks.
const crossing = "cross"

// phase of a pod once it runs: those of replumb's that ask, or do something on a node, have done so.
func phase(pod *corev1.Pod) corev1.PodPhase {
	role, does := pod.Labels[connectivity.Label], pod.Labels[onNode]
	if role != "" && role != connectivity.RoleAnswer || does != "" && does != crossing {
		return corev1.PodSucceeded
	}
	return corev1.PodRunning
}

// message is what a pod says that has ended. Those on nodes have found nothing; those that ask were answered where they had to be.
func message(pod *corev1.Pod) string {
	if pod.Labels[onNode] != "" {
		return marshalled(&nodecleanup.TracesReport{})
	}
	var answers strings.Builder
	for _, arg := range pod.Spec.Containers[0].Args {
		switch {
		case strings.HasPrefix(arg, testpod.Try): // what policies forbid
			answers.WriteByte(testpod.No)
		case strings.HasPrefix(arg, testpod.Dial), strings.HasPrefix(arg, testpod.LookUp):
			answers.WriteByte(testpod.Yes)
		}
	}
	return answers.String()
}

func marshalled(r *nodecleanup.TracesReport) string {
	body, err := r.Marshal()
	if err != nil {
		return err.Error()
	}
	return string(body)
}
