package engine

import (
	"context"
	"errors"
)

// Fence keeps a run from writing once others may have taken over; the lock is one.
type Fence interface {
	// MayWrite returns a Revocation if others may be at work, and other errors if that is not
	// known. It asks the API server unless it did so lately, or always if sure.
	MayWrite(ctx context.Context, sure bool) error
}

// Revocation ends a run that must write nothing more, since others may be at work. As the cause of
// a cancelled context it cuts off steps in hand, which other causes let finish.
type Revocation interface {
	error
	Revokes()
}

// Revoked reports whether an error says that others may be at work.
func Revoked(err error) bool {
	var r Revocation
	return errors.As(err, &r)
}

type fenceKey struct{}

// Fenced is a child of ctx in which writes are made under a fence.
func Fenced(ctx context.Context, f Fence) context.Context {
	return context.WithValue(ctx, fenceKey{}, f)
}

// Unfenced is a child of ctx for the fence's own writes.
func Unfenced(ctx context.Context) context.Context {
	return withCurrent(Fenced(ctx, nil), nil)
}

// FenceOf is the fence of ctx; nil without one.
func FenceOf(ctx context.Context) Fence {
	f, _ := ctx.Value(fenceKey{}).(Fence)
	return f
}

// MayWrite asks the fence of ctx, if there is one. Clients ask before each write, and steps only
// where the API server has to confirm it at this very moment (sure).
func MayWrite(ctx context.Context, sure bool) error {
	if f := FenceOf(ctx); f != nil {
		return f.MayWrite(ctx, sure)
	}
	return nil
}
