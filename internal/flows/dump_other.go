//go:build !linux

package flows

import "errors"

// dump works on Linux only, as nodes do.
func dump(func(flow)) error { return errors.ErrUnsupported }
