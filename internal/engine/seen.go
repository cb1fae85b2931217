package engine

import (
	"context"
	"errors"
)

// LookOf makes the Look of an Observed from a function that returns nil once the result is there,
// and NotYet before. After any other error there is nothing that a write could go by, even if the
// next look may be answered.
func LookOf[T any](read func(context.Context) (T, error)) func(context.Context) (State, T, error) {
	return func(ctx context.Context) (State, T, error) {
		seen, err := read(ctx)
		var later *notYetError
		if err != nil && !errors.As(err, &later) {
			return Unknown, seen, err
		}
		state, err := StateOf(err)
		return state, seen, err
	}
}

// ProofOf makes the Proof that goes with LookOf, from the same function.
func ProofOf[T any](read func(context.Context) (T, error)) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := read(ctx)
		return err
	}
}
