//go:build !linux

package ipvs

import "errors"

// Servers works where nodes do.
func Servers() ([]VirtualServer, error) { return nil, errors.ErrUnsupported }
