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

// Prefer works on Linux only.
func (h Host) Prefer(Network) error { return errors.ErrUnsupported }

// Prefers works on Linux only.
func (h Host) Prefers(Network) (bool, error) { return false, errors.ErrUnsupported }

// Unprefer works on Linux only.
func (h Host) Unprefer() error { return errors.ErrUnsupported }

// Inspect works on Linux only.
func (h Host) Inspect(Network) (*Report, error) { return nil, errors.ErrUnsupported }

// Origin works on Linux only.
func (h Host) Origin(Network) (*Report, error) { return nil, errors.ErrUnsupported }

// Adopt works on Linux only.
func (h Host) Adopt(Network) error { return errors.ErrUnsupported }

// Check works on Linux only.
func (s Services) Check(context.Context) (*Report, error) { return nil, errors.ErrUnsupported }
