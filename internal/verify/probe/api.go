package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
)

type apiCall struct {
	target Target
	dialer *dialer
}

func (a *apiCall) close() {}

func (a *apiCall) do(ctx context.Context) error {
	conn, err := dialTLS(ctx, a.dialer, a.target)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	request, err := a.request(ctx)
	if err != nil {
		return err
	}
	request.Close = true
	_, err = a.exchange(ctx, conn, bufio.NewReader(conn), request)
	return err
}

func (a *apiCall) request(ctx context.Context) (*http.Request, error) {
	token, err := os.ReadFile(a.target.TokenFile)
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+a.target.Address+a.target.Path, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.Header.Set("Accept", "application/json")
	return request, nil
}

// unanswered is a connection's end before the first byte of an answer.
type unanswered struct{ error }

func (u unanswered) Unwrap() error { return u.error }

// turnedAway is the 503 with Retry-After of an API server that ends (WithWaitGroup in
// k8s.io/apiserver pkg/server/filters/waitgroup.go).
type turnedAway struct{ error }

func (t turnedAway) Unwrap() error { return t.error }

// exchange reports whether the connection may be used again.
func (a *apiCall) exchange(ctx context.Context, conn net.Conn, answers *bufio.Reader, request *http.Request) (reusable bool, err error) {
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return false, err
		}
	}
	if err := request.Write(conn); err != nil {
		return false, unanswered{fmt.Errorf("send request: %w", err)}
	}
	if _, err := answers.Peek(1); err != nil {
		return false, unanswered{fmt.Errorf("read answer: %w", err)}
	}
	response, err := http.ReadResponse(answers, request)
	if err != nil {
		return false, fmt.Errorf("read answer: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := readAnswer(response, a.target.ExpectStatus)
	if err != nil && response.StatusCode == http.StatusServiceUnavailable && response.Header.Get("Retry-After") != "" {
		return false, turnedAway{err}
	}
	if err != nil {
		return false, err
	}
	var object struct{ Kind string }
	if err := json.Unmarshal(body, &object); err != nil || object.Kind == "" {
		return false, failf(BadAnswer, "answer is not an API server's: %.60q", body)
	}
	return !response.Close, nil
}

type keptAPICall struct {
	apiCall
	// turn holds the connection while no request uses it, and nil while there is none.
	turn chan *keptConn
}

type keptConn struct {
	net.Conn
	answers *bufio.Reader
}

func newKeptAPICall(target Target, dialer *dialer) *keptAPICall {
	k := &keptAPICall{apiCall: apiCall{target: target, dialer: dialer}, turn: make(chan *keptConn, 1)}
	k.turn <- nil
	return k
}

func (k *keptAPICall) close() {
	if conn := <-k.turn; conn != nil {
		_ = conn.Close()
	}
}

func (k *keptAPICall) do(ctx context.Context) error {
	var conn *keptConn
	select {
	case conn = <-k.turn:
	case <-ctx.Done():
		return failf(Timeout, "request before it is under way: %w", ctx.Err())
	}
	reused := conn != nil
	conn, err := k.over(ctx, conn)
	if err != nil && reused && closedBetween(err) {
		conn, err = k.over(ctx, nil)
	}
	k.turn <- conn
	return err
}

// over sends a request over conn, or over a new connection if that is nil, and returns the
// connection to go on with.
func (k *keptAPICall) over(ctx context.Context, conn *keptConn) (*keptConn, error) {
	if conn == nil {
		raw, err := dialTLS(ctx, k.dialer, k.target)
		if err != nil {
			return nil, err
		}
		conn = &keptConn{Conn: raw, answers: bufio.NewReader(raw)}
	}
	request, err := k.request(ctx)
	if err != nil {
		return conn, err
	}
	reusable, err := k.exchange(ctx, conn.Conn, conn.answers, request)
	if !reusable {
		_ = conn.Close()
		conn = nil
	}
	return conn, err
}

// closedBetween reports a used connection that was closed between requests, as servers may do;
// clients then repeat the request once (RFC 9112, 9.3.1; k8s.io/client-go rest/with_retry.go). A
// server that is asked again has no such excuse.
func closedBetween(err error) bool {
	var away turnedAway
	if errors.As(err, &away) {
		return true
	}
	var none unanswered
	if !errors.As(err, &none) {
		return false
	}
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
