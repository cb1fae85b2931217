package engine

import (
	"context"
	"errors"
)

// Fence keeps a run from writing that others may have taken over from. The lock puts one around each run.
type Fence interface {
	// MayWrite returns nil as long as no other can be at work, and a Revocation if one may be. It asks the API server if that is not known
	// from lately, or if it has to be sure. Other errors say that it could not be found out.
	MayWrite(ctx context.Context, sure bool) error
}

// Revocation is an error after which a run must write nothing more, not even to end what it has begun: others may be at work. As the
// cause of a cancelled context it cuts off the steps in hand, which other causes let end.
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

// Unfenced is a child of ctx for what a fence itself writes: it belongs to no step, and passes no fence.
func Unfenced(ctx context.Context) context.Context {
	return withCurrent(Fenced(ctx, nil), nil)
}

// MayWrite asks the fence of ctx; outside of a fence it returns nil. Clients ask before each write, steps only where even what was known a
// moment ago is not enough: if that has to be sure, the API server is asked.
func MayWrite(ctx context.Context, sure bool) error {
	if f, ok := ctx.Value(fenceKey{}).(Fence); ok {
		return f.MayWrite(ctx, sure)
	}
	return nil
}
