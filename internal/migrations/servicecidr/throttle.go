package servicecidr

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/network/bridge"
)

// nudgeName is what ingress controllers are given to see of a Service.
func nudgeName(svc *corev1.Service) string {
	return fmt.Sprintf("EndpointSlice %s/%s", svc.Namespace, bridge.NudgeOf(svc))
}
