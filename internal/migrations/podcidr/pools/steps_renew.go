package pools

import (
	"context"
	"fmt"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/calico"
)

// renewStep stops waiting when the pools were changed meanwhile: restarts would not help then.
type renewStep struct {
	engine.Step
	cluster   *cluster.Cluster
	moves     []PoolMove
	direction engine.Direction
	// own says that it restarts replumb's own pods.
	own bool
}

func (p *Planner) renew(s engine.Step, d engine.Direction) *renewStep {
	return &renewStep{Step: s, cluster: p.Tools.Cluster, moves: p.pools.Moves, direction: d}
}

func (s *renewStep) ID() string {
	if s.own {
		return "own/agents"
	}
	return s.Step.ID()
}

func (s *renewStep) Role() engine.StepRole {
	if s.own {
		return engine.RoleOwn
	}
	return engine.RoleMove
}

// Waits lets an interrupted run end at once: restarts go on without replumb.
func (*renewStep) Waits() {}

func (s *renewStep) Deadline() time.Duration {
	if t, ok := s.Step.(engine.Timed); ok {
		return t.Deadline()
	}
	return 0
}

// Note implements engine.Noter.
func (s *renewStep) Note() string {
	if n, ok := s.Step.(engine.Noter); ok {
		return n.Note()
	}
	return ""
}

func (s *renewStep) Preview() ([]engine.Change, error) { return engine.Preview(s.Step) }

func (s *renewStep) Verify(ctx context.Context) error {
	err := s.Step.Verify(ctx)
	if err == nil || !engine.Retryable(err) {
		return err
	}
	pools, listErr := calico.LoadPools(ctx, s.cluster)
	if listErr != nil {
		return err
	}
	for i := range s.moves {
		leave, enter := s.moves[i].From, s.moves[i].To
		if s.direction == backward {
			leave, enter = enter, leave
		}
		if p := poolAt(pools, leave); p != nil && !p.Spec.Disabled {
			return fmt.Errorf("ippool %s is enabled: it was changed meanwhile (%s)", p.Name, err.Error())
		}
		if p := poolAt(pools, enter); p == nil || p.Spec.Disabled {
			return fmt.Errorf("there is no enabled ippool of %s: it was changed meanwhile (%s)", enter, err.Error())
		}
	}
	return err
}
