package machine

import (
	"context"
	"fmt"
	"net"
	"runtime"

	"github.com/vishvananda/netns"
)

// Dial connects as a program on the machine would, to an address there: a name would be looked up on the host.
func (h *Handle) Dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	entered := h.Inside(ctx, func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) })
	if entered != nil {
		return nil, entered
	}
	return conn, err
}

// Inside runs do to its end on a thread of its own that is in the machine's network: sockets that do makes there belong to the machine, and those
// of goroutines that it starts do not.
func (h *Handle) Inside(ctx context.Context, do func()) error {
	info, err := h.Info(ctx)
	if err != nil {
		return fmt.Errorf("machine %s does not answer: %w", h.Spec.Name, err)
	}
	there, err := netns.GetFromPid(info.PID)
	if err != nil {
		return fmt.Errorf("network of machine %s: %w", h.Spec.Name, err)
	}
	defer func() { _ = there.Close() }()
	done := make(chan error, 1)
	go func() {
		// A socket belongs to the network that its thread was in when it was made. The thread ends with this function, as it is
		// not unlocked, so that nothing else ever runs there.
		runtime.LockOSThread()
		if err := netns.Set(there); err != nil {
			done <- fmt.Errorf("entering the network of machine %s: %w", h.Spec.Name, err)
			return
		}
		do()
		done <- nil
	}()
	return <-done
}
