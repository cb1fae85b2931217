package hop

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// Unthrottle removes what had ingress controllers gather changes while some Services hopped.
func (s *Steps) Unthrottle(name string, hopped []*services.Entry) engine.Step {
	var changes []engine.Change
	for _, e := range hopped {
		changes = append(changes, engine.Change{Verb: "delete", Object: nudgeName(e.Service)})
	}
	return &engine.Write{
		Name: "throttle/" + name, About: "Wait for ingress controllers to see what has moved",
		Holds:   s.throttle.Ended,
		Write:   s.throttle.End,
		Changes: func() ([]engine.Change, error) { return changes, nil },
	}
}

// nudgeName is what ingress controllers are given to see of a Service.
func nudgeName(svc *corev1.Service) string {
	return fmt.Sprintf("EndpointSlice %s/%s", svc.Namespace, bridge.NudgeOf(svc))
}
