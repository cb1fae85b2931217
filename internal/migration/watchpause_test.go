package migration

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/spec/window"
)

// never holds, and says when it was asked first.
func never(asked func()) func(context.Context) error {
	return func(context.Context) error {
		asked()
		return engine.NotYet("not in this test")
	}
}

// TestPauseEndsEveryWait: a run that waits ends with engine.ErrPaused when a pause is asked for,
// whatever kind of wait it is, and an API server that does not answer meanwhile changes nothing.
func TestPauseEndsEveryWait(t *testing.T) {
	for name, step := range map[string]func(asked func()) engine.Step{
		"a wait": func(asked func()) engine.Step { return &engine.Wait{Name: "w", For: never(asked), Limit: time.Hour} },
		"a gate": func(asked func()) engine.Step {
			return &engine.Gate{
				Wait: engine.Wait{Name: "g", For: never(asked), Limit: time.Hour}, Instructions: func() string { return "do" },
			}
		},
		"a write that may be cut off": func(asked func()) engine.Step {
			return engine.Interruptible{Write: &engine.Write{
				Name: "d", Limit: time.Hour, Holds: never(asked), Write: func(context.Context) error { return nil },
			}}
		},
		"a soak": func(asked func()) engine.Step {
			return &PauseStep{Name: "p", Length: time.Hour, Now: func() time.Time {
				asked()
				return time.Unix(0, 0)
			}}
		},
		"a window": func(asked func()) engine.Step {
			closed := []v1alpha1.Window{{Start: "01:00", End: "02:00", TimeZone: "UTC"}}
			return window.NewStep("w", closed, func() time.Time {
				asked()
				return time.Unix(0, 0)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			ticks, waiting := make(chan time.Time), make(chan struct{}, 1)
			answers := []error{errors.New("away"), nil, engine.ErrPaused}
			ctx, stop := watchPause(t.Context(), func(context.Context) error {
				err := answers[0]
				answers = answers[1:]
				return err
			}, ticks)
			defer stop()
			ended := make(chan error)
			var events []engine.Event
			r := &engine.Runner{Sink: func(e engine.Event) { events = append(events, e) }}
			plan := &engine.Plan{Name: "p", Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{
				Steps: []engine.Step{step(func() {
					select {
					case waiting <- struct{}{}:
					default:
					}
				})},
			}, {Steps: []engine.Step{&engine.Wait{Name: "next", For: func(context.Context) error {
				t.Error("went on to the next step")
				return nil
			}}}}}}}}
			go func() { ended <- r.Run(ctx, plan) }()
			<-waiting
			for range 3 {
				ticks <- time.Time{}
			}
			if err := <-ended; !errors.Is(err, engine.ErrPaused) || errors.Is(err, engine.ErrInterrupted) {
				t.Errorf("ended with %v", err)
			}
			if last := events[len(events)-1]; last.Kind != engine.RunInterrupted || last.Error != "paused" {
				t.Errorf("last event: %+v", last)
			}
			failed := slices.IndexFunc(events, func(e engine.Event) bool { return e.Kind == engine.StepFailed })
			if failed < 0 || !events[failed].Interrupted {
				t.Errorf("the wait is told as a failure: %+v", events)
			}
		})
	}
}

// TestPauseLetsWritesFinish: a step that writes is brought to its end.
func TestPauseLetsWritesFinish(t *testing.T) {
	ticks := make(chan time.Time)
	ctx, stop := watchPause(t.Context(), func(context.Context) error { return engine.ErrPaused }, ticks)
	defer stop()
	done := false
	plan := &engine.Plan{Name: "p", Phases: []engine.Phase{{Name: "p", Groups: []engine.Group{{Steps: []engine.Step{&engine.Write{
		Name: "w", Holds: func(context.Context) error {
			if done {
				return nil
			}
			return engine.NotYet("not written")
		},
		Write: func(writing context.Context) error {
			ticks <- time.Time{}
			<-ctx.Done() // paused by now
			done = writing.Err() == nil
			return nil
		},
	}}}}}}}
	if err := (&engine.Runner{}).Run(ctx, plan); !errors.Is(err, engine.ErrPaused) || !done {
		t.Errorf("ended with %v, done: %t", err, done)
	}
}

// TestHeedEnds: nothing is asked once a run is over.
func TestHeedEnds(t *testing.T) {
	ctx, stop := watchPause(t.Context(), func(context.Context) error { return errors.New("asked") }, make(chan time.Time))
	stop()
	if !errors.Is(context.Cause(ctx), context.Canceled) {
		t.Errorf("cause: %v", context.Cause(ctx))
	}
}
