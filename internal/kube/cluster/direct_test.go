package cluster

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"
)

// TestFallbackIsLeft has connections to the Service's address only while no API server answers.
func TestFallbackIsLeft(t *testing.T) {
	closed := listen(t)
	endpoint := closed.Addr().String()
	_ = closed.Close()
	service := listen(t)
	_, e := Direct([]string{endpoint}, []string{service.Addr().String()}, t.TempDir())

	detour := dialed(t, e, service.Addr().String())
	e.Set(t.Context(), []string{endpoint})
	if !open(t, detour) {
		t.Fatal("the fallback was left for an endpoint that does not answer")
	}
	server, err := net.Listen("tcp", endpoint)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Close() }()
	e.Set(t.Context(), []string{endpoint})
	if open(t, detour) {
		t.Error("a connection to the fallback stays although an endpoint answers")
	}
	direct := dialed(t, e, endpoint)
	e.Set(t.Context(), []string{endpoint})
	if !open(t, direct) {
		t.Error("a connection to an endpoint was closed")
	}
}

// TestFallbackIsLast has it tried after every endpoint, whichever of them answered last.
func TestFallbackIsLast(t *testing.T) {
	first, last, service := listen(t), listen(t), listen(t)
	_, e := Direct([]string{first.Addr().String(), last.Addr().String()}, []string{service.Addr().String()}, t.TempDir())
	e.remember(last.Addr().String())
	dialed(t, e, last.Addr().String())
	_ = last.Close()
	dialed(t, e, first.Addr().String())
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dialed(t *testing.T, e *APIEndpoints, want string) net.Conn {
	t.Helper()
	conn, err := e.dial(t.Context(), "tcp", serverName+":443")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if is := conn.RemoteAddr().String(); is != want {
		t.Fatalf("connected to %s, not to %s", is, want)
	}
	return conn
}

// open is whether nobody has closed a connection over which nothing comes.
func open(t *testing.T, conn net.Conn) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond)); err != nil {
		return false
	}
	_, err := conn.Read(make([]byte, 1))
	return errors.Is(err, os.ErrDeadlineExceeded)
}
