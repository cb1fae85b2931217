package main

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// lookEvery is the pace at which what is waited for is looked at.
const lookEvery = 500 * time.Millisecond

// until looks until there is no error, and returns the last one when that takes too long.
func until(ctx context.Context, within time.Duration, what string, look func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := look(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", what, ctx.Err(), err)
		case <-time.After(lookEvery):
		}
	}
}

// persist makes requests until API servers have answered them: one of three may be gone.
func persist(ctx context.Context, do func(context.Context) error) error {
	var last error
	err := until(ctx, writeWithin, "an API server", func(ctx context.Context) error {
		if last = do(ctx); last != nil && temporary(last) {
			return last
		}
		return nil
	})
	if err != nil {
		return err
	}
	return last
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
