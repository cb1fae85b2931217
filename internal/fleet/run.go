package fleet

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// Outcome is how a replumb ended.
type Outcome struct {
	Code  int
	Error string
}

// Replumb works on one cluster, through a replumb of its own.
type Replumb interface {
	// Status asks where the migration of the cluster stands.
	Status(ctx context.Context, t *ClusterTarget) ClusterState
	// Do runs an action to its end, or to where it is safe to end once ctx is cancelled.
	Do(ctx context.Context, t *ClusterTarget, a ClusterAction) Outcome
}

// The kinds of events.
const (
	WaveStarted    = "WaveStarted"
	ClusterStarted = "ClusterStarted"
	ClusterSpared  = "ClusterSpared"
	ClusterDone    = "ClusterDone"
	ClusterFailed  = "ClusterFailed"
	Soaking        = "Soaking"
	Healthy        = "Healthy"
	WaveDone       = "WaveDone"
)

// Event of a fleet, beside the events of its clusters.
type Event struct {
	Time    time.Time `json:"time"`
	Kind    string    `json:"kind"`
	Fleet   string    `json:"fleet"`
	Wave    string    `json:"wave"`
	Cluster string    `json:"cluster,omitempty"`
	// Message says why, in words for people.
	Message string `json:"message,omitempty"`
	// ExitCode is that of the cluster's replumb.
	ExitCode int     `json:"exitCode,omitempty"`
	Error    string  `json:"error,omitempty"`
	Seconds  float64 `json:"seconds,omitempty"`
}

// WaveRunner brings an action to all clusters of a fleet, wave by wave.
type WaveRunner struct {
	Fleet   *Fleet
	Targets []*ClusterTarget
	Action  ClusterAction
	Replumb Replumb
	// Health is called after each wave; nil if nothing is.
	Health func(context.Context, HealthRequest) error
	// OnEvent is called for each event, one at a time.
	OnEvent func(Event)
	Now     func() time.Time
	Wait    func(context.Context, time.Duration) error

	emitting sync.Mutex
}

// HealthRequest is what the health action gets.
type HealthRequest struct {
	APIVersion string        `json:"apiVersion"`
	Kind       string        `json:"kind"`
	Fleet      string        `json:"fleet"`
	Wave       string        `json:"wave"`
	Action     ClusterAction `json:"action"`
	// Clusters are those of the wave, as they are now.
	Clusters []ClusterState `json:"clusters"`
}

// Run runs the waves in the order of the action, and halts with a *HaltedError at the first that
// fails.
func (r *WaveRunner) Run(ctx context.Context) error {
	waves := r.Action.Order(r.Fleet.Spec.Waves)
	for i, w := range waves {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("fleet %s before wave %s: %w", r.Fleet.Name, w.Name, engine.ErrInterrupted)
		}
		err := r.wave(ctx, w)
		if err == nil {
			continue
		}
		code, own := fault.ExitCode(err)
		if ctx.Err() != nil && (!own || code == fault.ExitInterrupted) {
			return fmt.Errorf("fleet %s in wave %s: %w", r.Fleet.Name, w.Name, engine.ErrInterrupted)
		}
		if halted := (*HaltedError)(nil); errors.As(err, &halted) {
			for _, later := range waves[i+1:] {
				halted.Left = append(halted.Left, later.Clusters...)
			}
		}
		return err
	}
	return nil
}

func (r *WaveRunner) wave(ctx context.Context, w Wave) error {
	started := r.Now()
	r.emit(Event{Kind: WaveStarted, Wave: w.Name})
	halted := &HaltedError{Fleet: r.Fleet.Name, Wave: w.Name, Action: r.Action}
	if halted.Ended, halted.Left = r.clusters(ctx, w); len(halted.Ended)+len(halted.Left) > 0 {
		return halted
	}
	if halted.Health = r.soak(ctx, w); ctx.Err() != nil {
		return ctx.Err()
	}
	if halted.Health != nil {
		return halted
	}
	r.emit(Event{Kind: WaveDone, Wave: w.Name, Seconds: r.Now().Sub(started).Seconds()})
	return nil
}

// clusters runs the action in those of a wave, Parallel at a time. The first failure interrupts the
// others.
func (r *WaveRunner) clusters(ctx context.Context, w Wave) (ended []Result, left []string) {
	ctx, halt := context.WithCancel(ctx)
	defer halt()
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(w.Parallel)
	for _, name := range w.Clusters {
		group.Go(func() error {
			if ctx.Err() != nil {
				mu.Lock()
				defer mu.Unlock()
				left = append(left, name)
				return nil
			}
			of := r.one(ctx, w, r.target(name))
			if of.Code == fault.ExitDone {
				return nil
			}
			halt()
			mu.Lock()
			defer mu.Unlock()
			ended = append(ended, Result{Cluster: name, Outcome: of})
			return nil
		})
	}
	_ = group.Wait() // which has no error to give
	return ended, left
}

func (r *WaveRunner) one(ctx context.Context, w Wave, t *ClusterTarget) Outcome {
	if why := r.Action.Spared(r.Replumb.Status(ctx, t)); why != "" {
		r.emit(Event{Kind: ClusterSpared, Wave: w.Name, Cluster: t.Name, Message: why})
		return Outcome{}
	}
	started := r.Now()
	r.emit(Event{Kind: ClusterStarted, Wave: w.Name, Cluster: t.Name})
	of := r.Replumb.Do(ctx, t, r.Action)
	e := Event{Kind: ClusterDone, Wave: w.Name, Cluster: t.Name, Seconds: r.Now().Sub(started).Seconds()}
	if of.Code != fault.ExitDone {
		e.Kind, e.ExitCode, e.Error = ClusterFailed, of.Code, of.Error
	}
	r.emit(e)
	return of
}

// soak waits for the rest of a wave's soak, and calls the health action.
func (r *WaveRunner) soak(ctx context.Context, w Wave) error {
	if r.Action != Apply || w.soak == 0 && r.Health == nil {
		return nil
	}
	states := r.states(ctx, w)
	if left := soakLeft(w.soak, states, r.Now()).Round(time.Second); left > 0 {
		r.emit(Event{Kind: Soaking, Wave: w.Name, Message: left.String(), Seconds: left.Seconds()})
		if err := r.Wait(ctx, left); err != nil {
			return err
		}
		states = r.states(ctx, w)
	}
	if r.Health == nil {
		return nil
	}
	err := r.Health(ctx, HealthRequest{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "FleetHealthRequest", Fleet: r.Fleet.Name, Wave: w.Name, Action: r.Action,
		Clusters: states,
	})
	if err == nil {
		r.emit(Event{Kind: Healthy, Wave: w.Name})
	}
	return err
}

func (r *WaveRunner) states(ctx context.Context, w Wave) []ClusterState {
	var of []*ClusterTarget
	for _, name := range w.Clusters {
		of = append(of, r.target(name))
	}
	return States(ctx, r.Replumb, of)
}

const looks = 4

// States asks clusters where they stand, and returns the answers in their order.
func States(ctx context.Context, at Replumb, of []*ClusterTarget) []ClusterState {
	all := make([]ClusterState, len(of))
	Each(of, func(i int, t *ClusterTarget) { all[i] = at.Status(ctx, t) })
	return all
}

// Each calls do for all targets, a few at a time, and waits.
func Each(of []*ClusterTarget, do func(i int, t *ClusterTarget)) {
	var group errgroup.Group
	group.SetLimit(looks)
	for i, t := range of {
		group.Go(func() error {
			do(i, t)
			return nil
		})
	}
	_ = group.Wait() // which has no error to give
}

func (r *WaveRunner) target(name string) *ClusterTarget {
	for _, t := range r.Targets {
		if t.Name == name {
			return t
		}
	}
	return nil
}

func (r *WaveRunner) emit(e Event) {
	r.emitting.Lock()
	defer r.emitting.Unlock()
	e.Time, e.Fleet = r.Now().UTC(), r.Fleet.Name
	r.OnEvent(e)
}
