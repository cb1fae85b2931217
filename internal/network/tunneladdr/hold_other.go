//go:build !linux

package tunneladdr

import (
	"context"
	"errors"
	"net/netip"
)

// Hold works on Linux only, as nodes with tunnels do.
func Hold([]netip.Prefix) ([]netip.Addr, error) { return nil, errors.ErrUnsupported }

// Give works on Linux only.
func Give(string, netip.Addr) error { return errors.ErrUnsupported }

// Release works on Linux only.
func Release([]netip.Prefix) ([]netip.Addr, error) { return nil, errors.ErrUnsupported }

// RouteKeeper is one node's.
type RouteKeeper struct{ Fresh netip.Addr }

func (*RouteKeeper) Add() error { return errors.ErrUnsupported }

func (*RouteKeeper) Run(context.Context, func(error)) error { return errors.ErrUnsupported }

// RemoveRoutes works on Linux only.
func RemoveRoutes() error { return errors.ErrUnsupported }
