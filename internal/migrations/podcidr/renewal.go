package podcidr

import (
	"context"
	"fmt"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/calico"
)

// renewal is what the rollout package makes: a restart or an eviction.
type renewal interface {
	engine.Step
	engine.Previewer
	engine.Timed
	engine.Waiter
}

// rollStep is a renewal that does not wait for what cannot come: when somebody has changed the pools meanwhile, new pods get
// addresses of the range that is left, however often they are restarted.
type rollStep struct {
	renewal
	tools Tools
	moves []Move
	way   direction
}

func (p *Planner) renew(s engine.Step, d direction) engine.Step {
	r, ok := s.(renewal)
	if !ok {
		return s
	}
	return &rollStep{renewal: r, tools: p.Tools, moves: p.Survey.Moves, way: d}
}

// Verify implements engine.Step.
func (s *rollStep) Verify(ctx context.Context) error {
	err := s.renewal.Verify(ctx)
	if err == nil || !engine.Retryable(err) {
		return err
	}
	pools, listErr := calico.LoadPools(ctx, s.tools.Cluster)
	if listErr != nil {
		return err
	}
	now := &calico.State{Pools: pools}
	for i := range s.moves {
		leave, enter := s.moves[i].From, s.moves[i].To
		if s.way == back {
			leave, enter = enter, leave
		}
		if p := poolAt(now, leave); p != nil && !p.Spec.Disabled {
			return fmt.Errorf("ippool %s is enabled: somebody changed it meanwhile (%s)", p.Name, err.Error())
		}
		if p := poolAt(now, enter); p == nil || p.Spec.Disabled {
			return fmt.Errorf("there is no enabled ippool of %s: somebody changed it meanwhile (%s)", enter, err.Error())
		}
	}
	return err
}
