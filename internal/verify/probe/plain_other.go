//go:build !linux

package probe

import (
	"context"
	"net"
	"net/netip"
)

func (*plain) dial(context.Context, string, netip.AddrPort) (conn net.Conn, ok bool, err error) {
	return nil, false, nil
}
