//go:build !linux

package nodecleanup

import (
	"context"
	"errors"
)

// Residue works on Linux only, as nodes do.
func (h Host) Residue(Network) (*Report, error) { return nil, errors.ErrUnsupported }

// Clean works on Linux only.
func (h Host) Clean(Network) (*Report, error) { return nil, errors.ErrUnsupported }

// Watch works on Linux only.
func (w Watcher) Watch(context.Context) (*Report, error) { return nil, errors.ErrUnsupported }
