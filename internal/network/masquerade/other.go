//go:build !linux

package masquerade

import (
	"context"
	"errors"
	"time"
)

// Apply works on Linux only, as nodes do.
func Apply([]RangePair) (bool, error) { return false, errors.ErrUnsupported }

// Check works on Linux only.
func Check([]RangePair) error { return errors.ErrUnsupported }

// Maintain works on Linux only.
func Maintain(context.Context, []RangePair, time.Duration, func(error)) error {
	return errors.ErrUnsupported
}

// Remove works on Linux only.
func Remove() error { return errors.ErrUnsupported }
