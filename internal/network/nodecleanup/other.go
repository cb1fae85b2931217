//go:build !linux

package nodecleanup

import (
	"context"
	"errors"
)

func (h Host) Residue(Network) (*Report, error) { return nil, errors.ErrUnsupported }

func (h Host) Clean(Network) (*Report, error) { return nil, errors.ErrUnsupported }

func (w Watcher) Watch(context.Context) (*Report, error) { return nil, errors.ErrUnsupported }

func (h Host) Prefer(Network) error { return errors.ErrUnsupported }

func (h Host) Prefers(Network) (bool, error) { return false, errors.ErrUnsupported }

func (h Host) Unprefer() error { return errors.ErrUnsupported }

func (h Host) Inspect(Network) (*Report, error) { return nil, errors.ErrUnsupported }

func (h Host) Origin(Network) (*Report, error) { return nil, errors.ErrUnsupported }

func (h Host) Adopt(Network) error { return errors.ErrUnsupported }

func (s Services) Check(context.Context) (*Report, error) { return nil, errors.ErrUnsupported }
