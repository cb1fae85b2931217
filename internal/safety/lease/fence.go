package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/replumb/replumb/internal/engine"
)

var _ engine.Fence = (*Lock)(nil)

// MayWrite returns a LostError once the lock is lost or released. After a renewal the lock is safe
// for as long as a Lease that looks expired is watched, whatever others' clocks say, so it is not
// asked more often, except before the final step: a Lease that is deleted by hand is free at once.
func (l *Lock) MayWrite(ctx context.Context, sure bool) error {
	var lost *LostError
	switch cause := context.Cause(l.lost); {
	case errors.As(cause, &lost):
		return lost
	case cause != nil:
		return &LostError{Why: errors.New("it was released")}
	}
	if err := l.confirm(engine.Unfenced(ctx), sure); err != nil {
		if errors.As(err, &lost) {
			return lost
		}
		return fmt.Errorf("asking whether the lock is still held: %w", err)
	}
	return nil
}

// Of is the lock that fences writes in ctx; nil, if none does.
func Of(ctx context.Context) *Lock {
	l, _ := engine.FenceOf(ctx).(*Lock)
	return l
}

// Holds reports whether a Lease, as it is stored, is this lock's, and no other process has taken
// it.
func (l *Lock) Holds(have *coordinationv1.Lease) bool {
	return have.Annotations[annotationToken] == l.token
}

// fresh reports whether the latest renewal rules others out, by both clocks: the monotonic one
// stands still in a suspended machine, and the wall clock may be set.
func (l *Lock) fresh() bool {
	watched := l.timing.watched()
	return time.Since(l.renewed) < watched && l.now().Round(0).Sub(l.wall.Round(0)).Abs() < watched
}

func (l *Lock) confirm(ctx context.Context, sure bool) error {
	l.renewing.Lock()
	defer l.renewing.Unlock()
	if !sure && l.fresh() {
		return nil
	}
	asked, wall, expires := time.Now(), l.now(), l.renewed.Add(l.timing.duration)
	err := l.renew(ctx, expires)
	var lost *LostError
	switch {
	case err == nil:
		l.renewed, l.wall, l.failed = asked, wall, nil
		return nil
	case ctx.Err() != nil:
		return err
	case errors.As(err, &lost):
		l.end(lost)
		return lost
	}
	// The last request before the end fails for lack of time alone.
	if l.failed == nil || !errors.Is(err, context.DeadlineExceeded) {
		l.failed = err
	}
	if time.Now().Before(expires) {
		return err
	}
	lost = &LostError{Why: fmt.Errorf("it could not be renewed for %s: %w", l.timing.duration, l.failed)}
	l.end(lost)
	return lost
}
