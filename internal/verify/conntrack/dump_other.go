//go:build !linux

package conntrack

import "errors"

// dump works on Linux only, as nodes do.
func dump(func(flow)) error { return errors.ErrUnsupported }
