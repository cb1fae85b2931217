package servicecidr

import (
	"context"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
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
func (e *Entry) throttled() bool { return e.routed && !e.Mirrored() }

// unthrottle removes what has ingress controllers gather changes.
func (t *transit) unthrottle(name string) engine.Step {
	return &engine.Observed[struct{}]{
		Name: "throttle/" + name, About: "Let ingress controllers see what has moved",
		Look: func(ctx context.Context) (state engine.State, none struct{}, err error) {
			state, err = engine.StateOf(t.throttle.Ended(ctx))
			return state, none, err
		},
		Write:   func(ctx context.Context, _ struct{}) error { return t.throttle.End(ctx) },
		Changes: func() ([]engine.Change, error) { return nil, nil }, // the hops say what they leave to it
	}
}
