//go:build !linux

package nodecleanup

import (
	"context"
	"errors"
)

func (h Host) Residue(NetworkTraces) (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (Host) LeaveIPVS() (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (Host) QuiesceIPVS() (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (Host) RemoveIPVS() (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (h Host) Clean(NetworkTraces) (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (w Watcher) Watch(context.Context) (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (h Host) Prefer(NetworkTraces) error { return errors.ErrUnsupported }

func (h Host) Prefers(NetworkTraces) (bool, error) { return false, errors.ErrUnsupported }

func (h Host) Unprefer() error { return errors.ErrUnsupported }

func (h Host) Inspect(NetworkTraces) (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (h Host) Origin(NetworkTraces) (*TracesReport, error) { return nil, errors.ErrUnsupported }

func (h Host) Adopt(NetworkTraces) error { return errors.ErrUnsupported }

func (s ServiceQuery) Check(context.Context) (*TracesReport, error) {
	return nil, errors.ErrUnsupported
}
