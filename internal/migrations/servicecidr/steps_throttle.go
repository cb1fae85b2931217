package servicecidr

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/bridge"
)

// setRouted marks the Services that ingress controllers and gateways lead to.
func (s *Survey) setRouted(all []cluster.Route) {
	for _, e := range s.Moves {
		for _, r := range all {
			e.routed = e.routed || r.Service == e.Key()
		}
	}
}

// throttled reports whether ingress controllers are to see nothing of a hop. A Service without selector hops like any other: its bridge would copy
// what they are given to see.
func (e *Entry) throttled() bool { return e.routed && e.hops() && !e.Mirrored() }

// unthrottle removes what had ingress controllers gather changes when some Services hopped.
func (t *transit) unthrottle(name string, hopped []*Entry) engine.Step {
	var changes []engine.Change
	for _, e := range hopped {
		changes = append(changes, engine.Change{Verb: "delete", Object: nudgeName(e.Service)})
	}
	return &engine.Observed[struct{}]{
		Name: "throttle/" + name, About: "Wait for ingress controllers to see what has moved",
		Look: func(ctx context.Context) (state engine.State, none struct{}, err error) {
			state, err = engine.StateOf(t.throttle.Ended(ctx))
			return state, none, err
		},
		Write:   func(ctx context.Context, _ struct{}) error { return t.throttle.End(ctx) },
		Changes: func() ([]engine.Change, error) { return changes, nil },
	}
}

// nudgeName is what ingress controllers are given to see of a Service.
func nudgeName(svc *corev1.Service) string {
	return fmt.Sprintf("EndpointSlice %s/%s", svc.Namespace, bridge.NudgeOf(svc))
}
