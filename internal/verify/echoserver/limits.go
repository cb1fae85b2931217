package echoserver

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// Limits protect a server that every pod can call. Agents need far less: two streams per node, and
// short requests.
type Limits struct {
	// Connections bounds those of each port, FromOne those of one address. Excess ones are closed
	// at once.
	Connections, FromOne int
	// Idle limits silent connections. Agents' streams send a line a second.
	Idle time.Duration
}

// ForAgents limits servers of agents: 20 KiB a connection, of an agent's 256 MiB.
func ForAgents() Limits { return Limits{Connections: 2048, FromOne: 256, Idle: time.Minute} }

const (
	// longestLine and longestHeader bound requests. Agents send 20 and 100 bytes.
	longestLine   = 1 << 10
	longestHeader = 8 << 10
	// headerTime is for headers, requestTime for a whole request: more than any handler takes.
	headerTime, requestTime = 10 * time.Second, 90 * time.Second
	// ephemeral is the lowest client port: lower ones are servers (echo, chargen, DNS, NTP), real
	// or claimed, which would answer an answer. A masquerading kube-proxy gives clients any higher
	// port.
	ephemeral = 1024
)

func (s *Server) web() *http.Server {
	web := &http.Server{
		Handler: s.Web, ReadHeaderTimeout: headerTime, ReadTimeout: requestTime, MaxHeaderBytes: longestHeader, IdleTimeout: s.Limits.Idle,
	}
	if web.Handler == nil {
		web.Handler = http.HandlerFunc(s.name)
	}
	return web
}

type limited struct {
	net.Listener
	limits Limits

	mu   sync.Mutex
	all  int
	from map[netip.Addr]int
}

func limit(l net.Listener, limits Limits) net.Listener {
	if limits.Connections == 0 {
		return l
	}
	return &limited{Listener: l, limits: limits, from: map[netip.Addr]int{}}
}

func (l *limited) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		var from netip.Addr
		if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
			from = at.Addr().Unmap()
		}
		if l.take(from) {
			return &counted{Conn: conn, leave: sync.OnceFunc(func() { l.leave(from) })}, nil
		}
		_ = conn.Close()
	}
}

func (l *limited) take(from netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all >= l.limits.Connections || l.from[from] >= l.limits.FromOne {
		return false
	}
	l.all++
	l.from[from]++
	return true
}

func (l *limited) leave(from netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all--
	if l.from[from]--; l.from[from] == 0 {
		delete(l.from, from)
	}
}

type counted struct {
	net.Conn
	leave func()
}

func (c *counted) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
