package machine

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
)

// Dial connects as a program on the machine would, to an address there: a name would be looked up on the host.
func (h *Handle) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	info, err := h.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("machine %s does not answer: %w", h.Spec.Name, err)
	}
	there, err := netns.GetFromPid(info.PID)
	if err != nil {
		return nil, fmt.Errorf("network of machine %s: %w", h.Spec.Name, err)
	}
	defer func() { _ = there.Close() }()
	type dialed struct {
		conn net.Conn
		err  error
	}
	done := make(chan dialed, 1)
	go func() {
		// A socket belongs to the network that its thread was in when it was made. The thread ends with this function, as it is
		// not unlocked, so that nothing else ever runs there.
		runtime.LockOSThread()
		if err := netns.Set(there); err != nil {
			done <- dialed{nil, fmt.Errorf("entering the network of machine %s: %w", h.Spec.Name, err)}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		done <- dialed{conn, err}
	}()
	d := <-done
	return d.conn, d.err
}
