package engine

import "context"

// LookOf makes the Look of an Observed from a function that returns nil once the result is there,
// and NotYet before.
func LookOf[T any](read func(context.Context) (T, error)) func(context.Context) (State, T, error) {
	return func(ctx context.Context) (State, T, error) {
		seen, err := read(ctx)
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
