package echoserver

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// Limits protect a server that every pod can call. Agents need far less: two streams per node, and
// short requests.
type Limits struct {
	// Connections bounds those of each port, FromOne those of one address. For each one too many
	// that which was silent for longest is closed.
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

// limited closes the connection that was silent for longest for each one too many: agents, who are
// many and have few, get through when others hold as many as there may be.
type limited struct {
	net.Listener
	limits Limits

	mu   sync.Mutex
	all  int
	from map[netip.Addr]map[*counted]struct{}
}

func limit(l net.Listener, limits Limits) net.Listener {
	if limits.Connections == 0 {
		return l
	}
	return &limited{Listener: l, limits: limits, from: map[netip.Addr]map[*counted]struct{}{}}
}

func (l *limited) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &counted{Conn: conn, in: l}
	if at, err := netip.ParseAddrPort(conn.RemoteAddr().String()); err == nil {
		c.from = at.Addr().Unmap()
	}
	c.heard.Store(time.Now().UnixNano())
	if tooMany := l.take(c); tooMany != nil {
		_ = tooMany.Close()
	}
	return c, nil
}

// take counts a connection, and returns one that has to make way for it: of the same address, if
// that has as many as one may, or of the address that has most.
func (l *limited) take(c *counted) *counted {
	l.mu.Lock()
	defer l.mu.Unlock()
	var from map[*counted]struct{}
	switch {
	case len(l.from[c.from]) >= l.limits.FromOne:
		from = l.from[c.from]
	case l.all >= l.limits.Connections:
		for _, conns := range l.from {
			if len(conns) > len(from) {
				from = conns
			}
		}
	}
	longest := silent(from)
	if l.from[c.from] == nil {
		l.from[c.from] = map[*counted]struct{}{}
	}
	l.from[c.from][c] = struct{}{}
	l.all++
	return longest
}

func silent(conns map[*counted]struct{}) (longest *counted) {
	for c := range conns {
		if longest == nil || c.heard.Load() < longest.heard.Load() {
			longest = c
		}
	}
	return longest
}

func (l *limited) leave(c *counted) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, counts := l.from[c.from][c]; !counts {
		return
	}
	l.all--
	if delete(l.from[c.from], c); len(l.from[c.from]) == 0 {
		delete(l.from, c.from)
	}
}

type counted struct {
	net.Conn
	in   *limited
	from netip.Addr
	// heard is when the client last sent something, in nanoseconds.
	heard atomic.Int64
}

func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(time.Now().UnixNano())
	}
	return n, err
}

func (c *counted) Close() error {
	defer c.in.leave(c)
	return c.Conn.Close()
}
