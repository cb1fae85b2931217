package probe

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

type hooks struct {
	reconnected func(time.Time)
	opened      openedFunc
}

func newRequester(target Target, hooks hooks) requester {
	dialer := newDialer(target, hooks.opened)
	switch target.Kind {
	case TCP:
		return &connect{target: target, dialer: dialer}
	case UDP:
		return newDatagram(target, dialer)
	case Stream:
		return newStream(target, dialer, hooks.reconnected)
	case DNS:
		return &lookup{dialer: dialer, name: target.Address}
	case API:
		return &apiCall{target: target, dialer: dialer}
	case APIKept:
		return newKeptAPICall(target, dialer)
	default:
		return newGet(target, dialer)
	}
}

type lookup struct {
	dialer *dialer
	name   string
}

func (l *lookup) do(ctx context.Context) error {
	_, err := l.dialer.lookUp(ctx, l.name)
	return err
}

func (l *lookup) close() {}

type connect struct {
	target Target
	dialer *dialer
}

func (c *connect) close() {}

func (c *connect) do(ctx context.Context) error {
	began := time.Now()
	conn, err := c.dialer.dial(ctx, "tcp", c.target.Address)
	if err != nil {
		return err
	}
	c.dialer.plain.heard(time.Since(began))
	// The client closes first and keeps the TIME_WAIT; its result says nothing.
	_ = conn.Close()
	return nil
}

// get is the HTTP kind, over its own connection: http.Transport hides whether the look-up, the
// connect or the answer timed out.
type get struct {
	target Target
	dialer *dialer
	// request is what is sent, the same each time.
	request func() ([]byte, error)
	buffers sync.Pool
}

// answerSize is the length of answers that are read at once, such as echo servers'.
const answerSize = 4096

func newGet(target Target, dialer *dialer) *get {
	return &get{
		target: target, dialer: dialer,
		request: sync.OnceValues(func() ([]byte, error) { return wireRequest(target.url(), target.Host) }),
		buffers: sync.Pool{New: func() any { return new([answerSize]byte) }},
	}
}

func wireRequest(url, host string) ([]byte, error) {
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if host != "" {
		request.Host = host
	}
	var wire bytes.Buffer
	err = request.Write(&wire)
	return wire.Bytes(), err
}

func (g *get) close() {}

func (g *get) do(ctx context.Context) error {
	began := time.Now()
	conn, err := g.connect(ctx)
	if err != nil {
		return err
	}
	// The client closes first and keeps the TIME_WAIT, whose port the kernel avoids.
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return err
		}
	}
	request, err := g.request()
	if err != nil {
		return err
	}
	if _, err := conn.Write(request); err != nil {
		return fmt.Errorf("send request: %w", err)
	}
	buffer := g.buffers.Get().(*[answerSize]byte)
	defer g.buffers.Put(buffer)
	body, err := g.answer(conn, buffer[:])
	if err != nil {
		return err
	}
	g.dialer.plain.heard(time.Since(began))
	return g.target.checkIdentity(body)
}

func (g *get) answer(conn net.Conn, buffer []byte) ([]byte, error) {
	n, err := conn.Read(buffer)
	if err != nil && n == 0 {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read answer: %w", err)
	}
	if status, body, ok := whole(buffer[:n]); ok {
		return body, expect(status, g.target.ExpectStatus)
	}
	response, err := http.ReadResponse(bufio.NewReader(io.MultiReader(bytes.NewReader(buffer[:n]), conn)), nil)
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	return readAnswer(response, g.target.ExpectStatus)
}

// whole parses a simple, complete answer in a tenth of net/http's time; else not ok.
func whole(answer []byte) (status int, body []byte, ok bool) {
	head, body, ok := bytes.Cut(answer, []byte("\r\n\r\n"))
	line, fields, _ := bytes.Cut(head, []byte("\r\n"))
	status, known := statusOf(line)
	if !ok || !known {
		return 0, nil, false
	}
	length := -1
	for field := range bytes.SplitSeq(fields, []byte("\r\n")) {
		name, value, _ := bytes.Cut(field, []byte(":"))
		switch {
		case len(name) == 0, name[0] == ' ', name[0] == '\t', bytes.EqualFold(name, []byte("Transfer-Encoding")):
			return 0, nil, false
		case bytes.EqualFold(name, []byte("Content-Length")):
			var err error
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil || length < 0 {
				return 0, nil, false
			}
		}
	}
	return status, body, length >= 0 && length == len(body)
}

func statusOf(line []byte) (status int, ok bool) {
	version, rest, _ := bytes.Cut(line, []byte(" "))
	if string(version) != "HTTP/1.1" && string(version) != "HTTP/1.0" || len(rest) < 3 {
		return 0, false
	}
	status, err := strconv.Atoi(string(rest[:3]))
	return status, err == nil && status >= http.StatusOK && (len(rest) == 3 || rest[3] == ' ')
}

func (g *get) connect(ctx context.Context) (net.Conn, error) {
	if g.target.TLS {
		return dialTLS(ctx, g.dialer, g.target)
	}
	return g.dialer.dial(ctx, "tcp", g.target.Address)
}

func readAnswer(response *http.Response, expected int) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read answer: %w", err)
	}
	return body, expect(response.StatusCode, expected)
}

func expect(status, expected int) error {
	if status != expected {
		return failf(HTTPStatus, "status %d instead of %d", status, expected)
	}
	return nil
}

// EchoIdentity is how an echo server answers: who it is and which client address it saw.
type EchoIdentity struct {
	Name   string `json:"name"`
	Node   string `json:"node"`
	Pod    string `json:"pod"`
	Client string `json:"client"`
}

func (t Target) expectsIdentity() bool { return t.ExpectClientAddress != "" || t.ExpectServer != "" }

// checkIdentity compares an answer with the target's expectations. A translated source address
// breaks NetworkPolicies, and another server's name means another Service.
func (t Target) checkIdentity(answer []byte) error {
	if !t.expectsIdentity() {
		return nil
	}
	var identity EchoIdentity
	if err := json.Unmarshal(answer, &identity); err != nil {
		return failf(BadAnswer, "answer is not an echo server's: %w", err)
	}
	if want := t.ExpectServer; want != "" && identity.Name != want {
		return failf(WrongServer, "server %q answered instead of %q", identity.Name, want)
	}
	if want := t.ExpectClientAddress; want != "" && !slices.Contains(strings.Split(want, ","), identity.Client) {
		return failf(WrongClient, "server saw client %q instead of %q", identity.Client, want)
	}
	return nil
}
