package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dial connects, or makes a socket over "udp"; Go has to where ok is false.
func (p *plain) dial(ctx context.Context, network string, to netip.AddrPort) (conn net.Conn, ok bool, err error) {
	deadline, limited := ctx.Deadline()
	if p.slow.Load() || !limited || to.Addr().Zone() != "" {
		return nil, false, nil
	}
	kind := unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	family, address := sockaddr(to)
	fd, err := unix.Socket(family, kind|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, true, dialError(network, to, os.NewSyscallError("socket", err))
	}
	c := &plainConn{fd: fd, plain: p, network: network, to: to, deadline: deadline}
	if err := c.connect(address); err != nil {
		_ = c.Close()
		return nil, true, dialError(network, to, err)
	}
	return c, true, nil
}

func sockaddr(to netip.AddrPort) (family int, address unix.Sockaddr) {
	if a := to.Addr().Unmap(); a.Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: a.As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
}

func dialError(network string, to netip.AddrPort, err error) error {
	return &net.OpError{Op: "dial", Net: network, Addr: socketAddr(network, to), Err: err}
}

func socketAddr(network string, at netip.AddrPort) net.Addr {
	if network == "udp" {
		return net.UDPAddrFromAddrPort(at)
	}
	return net.TCPAddrFromAddrPort(at)
}

// plainConn is for one goroutine at a time.
type plainConn struct {
	fd       int
	plain    *plain
	network  string
	to       netip.AddrPort
	deadline time.Time
	// file has the socket once it is left to Go's poller.
	file *os.File
}

var _ net.Conn = (*plainConn)(nil)

func (c *plainConn) connect(address unix.Sockaddr) error {
	switch err := unix.Connect(c.fd, address); {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EINTR):
	default:
		return os.NewSyscallError("connect", err)
	}
	if c.ready(unix.POLLOUT) {
		return connected(c.fd)
	}
	if err := c.leave(); err != nil {
		return err
	}
	raw, err := c.file.SyscallConn()
	if err != nil {
		return err
	}
	var outcome error
	err = raw.Write(func(fd uintptr) bool {
		if outcome = connected(int(fd)); outcome != nil {
			return true
		}
		_, unconnected := unix.Getpeername(int(fd))
		return unconnected == nil
	})
	if err == nil {
		err = outcome
	}
	return err
}

func connected(fd int) error {
	errno, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
	if err != nil {
		return os.NewSyscallError("getsockopt", err)
	}
	if errno != 0 {
		return os.NewSyscallError("connect", syscall.Errno(errno))
	}
	return nil
}

func (c *plainConn) ready(events int16) bool {
	if c.file != nil || c.plain.slow.Load() {
		return false
	}
	limit := unix.NsecToTimespec(prompt.Nanoseconds())
	poll := unix.PollFd{Fd: int32(c.fd), Events: events} //nolint:gosec // a descriptor
	// Raw, so that Go's runtime does not hand the processor to another thread.
	n, _, errno := unix.RawSyscall6(
		unix.SYS_PPOLL, uintptr(unsafe.Pointer(&poll)), 1, uintptr(unsafe.Pointer(&limit)), 0, 0, 0, //nolint:gosec // see ppoll(2)
	)
	if n == 0 && errno == 0 {
		c.plain.slow.Store(true)
	}
	return errno == 0 && n == 1
}

func (c *plainConn) leave() error {
	if c.file != nil {
		return nil
	}
	c.file = os.NewFile(uintptr(c.fd), c.network)
	return c.file.SetDeadline(c.deadline)
}

func (c *plainConn) Read(b []byte) (int, error) {
	if c.file == nil && c.ready(unix.POLLIN) {
		n, err := unix.Read(c.fd, b)
		switch {
		case err == nil && n == 0 && len(b) > 0 && c.network != "udp":
			return 0, io.EOF
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return 0, c.failed("read", os.NewSyscallError("read", err))
		}
	}
	if err := c.leave(); err != nil {
		return 0, err
	}
	n, err := c.file.Read(b)
	return n, c.spoken("read", err)
}

func (c *plainConn) Write(b []byte) (int, error) {
	if c.file == nil {
		n, err := unix.Write(c.fd, b)
		switch {
		case err == nil && n == len(b):
			return n, nil
		case err != nil && !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			return 0, c.failed("write", os.NewSyscallError("write", err))
		}
		if err := c.leave(); err != nil {
			return max(n, 0), err
		}
		more, err := c.file.Write(b[max(n, 0):])
		return max(n, 0) + more, c.spoken("write", err)
	}
	n, err := c.file.Write(b)
	return n, c.spoken("write", err)
}

func (c *plainConn) spoken(op string, err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return c.failed(op, path.Err)
	}
	return err
}

func (c *plainConn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: c.network, Addr: c.RemoteAddr(), Err: err}
}

func (c *plainConn) Close() error {
	if c.file != nil {
		return c.file.Close()
	}
	return unix.Close(c.fd)
}

func (c *plainConn) LocalAddr() net.Addr {
	local, err := unix.Getsockname(c.fd)
	if err != nil {
		return nil
	}
	switch local := local.(type) {
	case *unix.SockaddrInet4:
		return socketAddr(c.network, netip.AddrPortFrom(netip.AddrFrom4(local.Addr), uint16(local.Port))) //nolint:gosec // a port
	case *unix.SockaddrInet6:
		return socketAddr(c.network, netip.AddrPortFrom(netip.AddrFrom16(local.Addr), uint16(local.Port))) //nolint:gosec // a port
	}
	return nil
}

func (c *plainConn) RemoteAddr() net.Addr { return socketAddr(c.network, c.to) }

func (c *plainConn) SetDeadline(t time.Time) error {
	c.deadline = t
	if c.file != nil {
		return c.file.SetDeadline(t)
	}
	return nil
}

// SetReadDeadline implements net.Conn: there is one deadline for all.
func (c *plainConn) SetReadDeadline(t time.Time) error { return c.SetDeadline(t) }

// SetWriteDeadline implements net.Conn: there is one deadline for all.
func (c *plainConn) SetWriteDeadline(t time.Time) error { return c.SetDeadline(t) }
