package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/objectsync"
)

// copyPatience is how long one copy of transfer.All may take.
const copyPatience = 4 * time.Hour

// copying is the copy of one run: its steps share what it knows.
type copying struct {
	copier *objectsync.Copier
	// run lasts as long as apply does. What follows changes ends with it.
	run context.Context //nolint:containedctx // it bounds what outlives a step

	mu       sync.Mutex
	follower *objectsync.Follower
	stop     context.CancelFunc
	ended    chan error
}

// copyStep copies objects. It cannot know whether all are there without looking at all, which is what it does: a second run writes
// nothing.
type copyStep struct {
	copying *copying
	part    objectsync.Part
}

var _ engine.Timed = (*copyStep)(nil)

func (s *copyStep) ID() string {
	if s.part == objectsync.Foundations {
		return "copy/foundations"
	}
	return "copy/objects"
}

func (s *copyStep) Title() string {
	if s.part == objectsync.Foundations {
		return "Copy what workloads stand on"
	}
	return "Copy objects to the target"
}

func (*copyStep) Deadline() time.Duration                     { return copyPatience }
func (*copyStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do copies. Objects that the target refuses are told all together.
func (s *copyStep) Do(ctx context.Context) error {
	result, err := s.copying.copier.Run(ctx, s.part)
	if err != nil {
		return err
	}
	return refused(result.Errors)
}

// Verify implements engine.Step: Do fails unless transfer.All is there.
func (*copyStep) Verify(context.Context) error { return nil }

// RefusedError lists objects that could not be copied.
type RefusedError struct{ Errors []*objectsync.ObjectError }

func (e *RefusedError) Error() string {
	var texts []string
	for _, one := range e.Errors {
		texts = append(texts, one.Error())
	}
	return fmt.Sprintf("%s could not be copied: %s", english.Plural(len(e.Errors), "object", ""), few(texts))
}

// Advice is what to do about the first one.
func (e *RefusedError) Advice() string { return e.Errors[0].Hint }

func refused(all []*objectsync.ObjectError) error {
	if len(all) == 0 {
		return nil
	}
	return &RefusedError{Errors: all}
}

// parityStep compares both clusters, object by object.
type parityStep struct{ copying *copying }

var (
	_ engine.Timed  = (*parityStep)(nil)
	_ engine.Waiter = (*parityStep)(nil)
)

func (*parityStep) ID() string                                  { return "parity/compare" }
func (*parityStep) Title() string                               { return "Compare both clusters, object by object" }
func (*parityStep) Waits()                                      {}
func (*parityStep) Deadline() time.Duration                     { return readiness }
func (*parityStep) State(context.Context) (engine.State, error) { return engine.Pending, nil }

// Do writes every copy anew if something differs that nobody is copying: what somebody has changed in the target is not seen to have
// changed in the source.
func (s *parityStep) Do(ctx context.Context) error {
	err := s.Verify(ctx)
	var different *DifferentError
	if !errors.As(err, &different) {
		return nil
	}
	c := s.copying.copier
	again := &objectsync.Copier{Source: c.Source, Target: c.Target, Rules: c.Rules, Rewrite: true}
	result, err := again.Run(ctx, objectsync.All)
	if err != nil {
		return err
	}
	return refused(result.Errors)
}

// Verify waits for differences to go that are being copied.
func (s *parityStep) Verify(ctx context.Context) error {
	if err := s.copying.settled(); err != nil {
		return err
	}
	parity, err := s.copying.copier.Compare(ctx)
	if err != nil || parity.Equal() {
		return err
	}
	return engine.NotYet("%w", &DifferentError{parity.Differences})
}

// DifferentError lists what differs.
type DifferentError struct{ Differences []objectsync.Difference }

func (e *DifferentError) Error() string {
	var texts []string
	for _, d := range e.Differences {
		texts = append(texts, d.String())
	}
	return fmt.Sprintf("%s: %s", english.Plural(len(e.Differences), "difference", ""), few(texts))
}

// Advice is what to do about it.
func (*DifferentError) Advice() string {
	return "something in the target changes copies: have it stop, leave the object out, or change it on the way by spec.mirror.copy.transforms"
}

// unready are the workloads of the target that are not ready, and why.
func (c *copying) unready(ctx context.Context) ([]string, error) {
	notes, err := c.copier.Unready(ctx)
	var texts []string
	for _, n := range notes {
		texts = append(texts, n.Ref.String()+" "+n.What)
	}
	return texts, err
}

// followStep follows what changes in the source, until names have moved or the run ends.
type followStep struct{ copying *copying }

var _ engine.Waiter = (*followStep)(nil)

func (*followStep) ID() string              { return "copy/follow" }
func (*followStep) Title() string           { return "Follow what changes in the source" }
func (*followStep) Waits()                  {}
func (*followStep) Deadline() time.Duration { return readiness }

// State is pending until somebody follows: an earlier run's follower ended with it.
func (s *followStep) State(context.Context) (engine.State, error) {
	s.copying.mu.Lock()
	defer s.copying.mu.Unlock()
	if s.copying.follower != nil {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *followStep) Do(context.Context) error {
	c := s.copying
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.follower != nil {
		return nil
	}
	ctx, stop := context.WithCancel(c.run)
	c.follower, c.stop = objectsync.NewFollower(c.copier), stop
	c.ended = make(chan error, 1)
	go func(f *objectsync.Follower) { c.ended <- f.Run(ctx) }(c.follower)
	return nil
}

func (s *followStep) Verify(context.Context) error { return s.copying.settled() }

// settled fails unless what was seen to change in the source is in the target.
func (c *copying) settled() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.follower == nil {
		return nil
	}
	select {
	case err := <-c.ended:
		c.follower = nil
		if err != nil {
			return fmt.Errorf("following what changes in the source: %w", err)
		}
		return engine.NotYet("nobody follows what changes in the source")
	default:
	}
	if troubles := c.follower.Troubles(); len(troubles) > 0 {
		return engine.NotYet("%w", refused(troubles))
	}
	if !c.follower.Settled() {
		return engine.NotYet("changes of the source are being copied, the oldest since %s", c.follower.Lag().Round(time.Second))
	}
	return nil
}

// unfollowStep stops following: from here on the source is no longer what the target has to be.
type unfollowStep struct{ copying *copying }

func (*unfollowStep) ID() string    { return "handover/unfollow" }
func (*unfollowStep) Title() string { return "Stop following the source" }

func (s *unfollowStep) State(context.Context) (engine.State, error) {
	s.copying.mu.Lock()
	defer s.copying.mu.Unlock()
	if s.copying.follower == nil {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *unfollowStep) Do(context.Context) error {
	c := s.copying
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.follower != nil {
		c.stop()
		err := <-c.ended
		c.follower = nil
		return err
	}
	return nil
}

func (*unfollowStep) Verify(context.Context) error { return nil }
