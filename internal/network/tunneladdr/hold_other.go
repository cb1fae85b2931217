//go:build !linux

package tunneladdr

import (
	"errors"
	"net/netip"
)

// Hold works on Linux only, as nodes with tunnels do.
func Hold([]netip.Prefix) ([]netip.Addr, error) { return nil, errors.ErrUnsupported }

// Release works on Linux only.
func Release([]netip.Prefix) ([]netip.Addr, error) { return nil, errors.ErrUnsupported }
