//go:build !linux

package conntrack

import "errors"

// dump works on Linux only, as nodes do.
func dump(func(flow)) error { return errors.ErrUnsupported }

func kernel() entries {
	return entries{
		list:   func(func(leftover)) error { return errors.ErrUnsupported },
		get:    func([]byte) (leftover, bool, error) { return leftover{}, false, errors.ErrUnsupported },
		remove: func([]byte) error { return errors.ErrUnsupported },
	}
}
