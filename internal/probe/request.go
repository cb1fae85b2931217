package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"time"
)

func newRequester(target Target, reconnected func(time.Time)) requester {
	dialer := newDialer(target.Resolver)
	if target.Remember {
		dialer.memory = &memory{server: target.Resolver}
	}
	switch target.Kind {
	case Stream:
		return newStream(target, dialer, reconnected)
	case DNS:
		return &lookup{dialer: dialer, name: target.Address}
	case API:
		return &apiCall{target: target, dialer: dialer}
	case APIKept:
		return newKeptAPICall(target, dialer)
	default:
		return &get{target: target, dialer: dialer}
	}
}

// dialer resolves and connects in two visible steps, so that a failure is blamed on the right one.
type dialer struct {
	server  string // host:port of the name server; that of resolv.conf if empty
	memory  *memory
	connect net.Dialer
}

func newDialer(server string) *dialer {
	return &dialer{server: server, connect: net.Dialer{KeepAlive: -1}}
}

// resolver is Go's own, which asks the servers of resolv.conf each time and caches nothing. It is a new one for each
// look-up: one that is shared has look-ups of the same name wait for one another, so that a single datagram that is lost
// would count as the loss of every request of the next five seconds.
func (d *dialer) resolver() *net.Resolver {
	resolver := &net.Resolver{PreferGo: true}
	if d.server != "" {
		resolver.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, d.server)
		}
	}
	return resolver
}

func (d *dialer) lookUp(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	if d.memory != nil {
		return d.memory.lookUp(ctx, host)
	}
	addrs, err := d.resolver().LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", host, err)
	}
	if len(addrs) == 0 {
		return nil, failf(DNSNotFound, "look up %s: no address", host)
	}
	return addrs, nil
}

// dial connects to the first address that accepts, like any client would.
func (d *dialer) dial(ctx context.Context, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	addrs, err := d.lookUp(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, addr := range addrs {
		var conn net.Conn
		conn, err = d.connect.DialContext(ctx, "tcp", net.JoinHostPort(addr.Unmap().String(), port))
		if err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// lookup is the DNS kind.
type lookup struct {
	dialer *dialer
	name   string
}

func (l *lookup) do(ctx context.Context) error {
	_, err := l.dialer.lookUp(ctx, l.name)
	return err
}

func (l *lookup) close() {}

// get is the HTTP kind. It speaks over a connection of its own making, because http.Transport hides whether a time-out
// struck in the look-up, the connect or the answer.
type get struct {
	target Target
	dialer *dialer
}

func (g *get) close() {}

func (g *get) do(ctx context.Context) error {
	conn, err := g.dialer.dial(ctx, g.target.Address)
	if err != nil {
		return err
	}
	// The client closes first and so keeps the TIME_WAIT on its own side, where the kernel avoids the port.
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.target.Address+g.target.Path, nil)
	if err != nil {
		return err
	}
	if err := request.Write(conn); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := readAnswer(response, g.target.ExpectStatus)
	if err != nil {
		return err
	}
	return checkClient(body, g.target.ExpectClientAddress)
}

// readAnswer reads an answer to its end and holds its status against the one expected.
func readAnswer(response *http.Response, expected int) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if response.StatusCode != expected {
		return nil, failf(HTTPStatus, "status %d instead of %d", response.StatusCode, expected)
	}
	return body, nil
}

// Identity is how an echo server answers: who it is and which client address it saw.
type Identity struct {
	Name   string `json:"name"`
	Node   string `json:"node"`
	Pod    string `json:"pod"`
	Client string `json:"client"`
}

// checkClient holds the address the server saw against the client's own. They differ when something on the way
// translated the source address, which breaks NetworkPolicies that select the client.
func checkClient(answer []byte, expected string) error {
	if expected == "" {
		return nil
	}
	var identity Identity
	if err := json.Unmarshal(answer, &identity); err != nil {
		return failf(BadAnswer, "answer is not an echo server's: %w", err)
	}
	if identity.Client != expected {
		return failf(WrongClient, "server saw client %q instead of %q", identity.Client, expected)
	}
	return nil
}
