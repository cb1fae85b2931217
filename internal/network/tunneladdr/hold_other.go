//go:build !linux

package tunneladdr

import (
	"context"
	"errors"
	"net/netip"
)

// Hold works on Linux only, as nodes with tunnels do.
func Hold([]netip.Prefix) ([]netip.Addr, error) { return nil, errors.ErrUnsupported }

// Release works on Linux only.
func Release([]netip.Prefix) ([]netip.Addr, error) { return nil, errors.ErrUnsupported }

// Ferry is one node's.
type Ferry struct{ Fresh netip.Addr }

// Board works on Linux only.
func (*Ferry) Board() error { return errors.ErrUnsupported }

// Run works on Linux only.
func (*Ferry) Run(context.Context, func(error)) error { return errors.ErrUnsupported }

// Land works on Linux only.
func Land() error { return errors.ErrUnsupported }
