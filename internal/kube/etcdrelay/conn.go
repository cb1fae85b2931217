package etcdrelay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// command runs Serve somewhere, until its streams or ctx end.
type command func(ctx context.Context, s cluster.Streams) error

// conn is one end of a command's streams.
type conn struct {
	net.Conn
	end context.CancelFunc
}

func (c *conn) Close() error {
	defer c.end()
	return c.Conn.Close()
}

// connect begins a command and waits for its greeting. The connection lasts longer than ctx.
func connect(ctx context.Context, run command) (net.Conn, error) {
	near, far := net.Pipe()
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	c := &conn{Conn: near, end: cancel}
	said, ended := &lastWords{}, make(chan error, 1)
	go func() {
		ended <- run(running, cluster.Streams{In: far, Out: far, Err: said})
		_ = far.Close() // the other end reads that it is over
	}()
	stop := context.AfterFunc(ctx, func() { _ = near.SetReadDeadline(time.Unix(1, 0)) })
	got := make([]byte, len(greeting))
	_, err := io.ReadFull(near, got)
	if stop(); err == nil && string(got) == greeting {
		return c, near.SetReadDeadline(time.Time{})
	}
	_ = c.Close()
	switch why := <-ended; {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("it does not connect in time: %w", context.Cause(ctx))
	case said.text() != "":
		return nil, errors.New(said.text())
	case why != nil:
		return nil, why
	}
	return nil, fmt.Errorf("it answers with %q", got)
}

// lastWords are what a command says of its failure.
type lastWords struct {
	mu   sync.Mutex
	said strings.Builder
}

// mostWords bound what a command may have this end keep.
const mostWords = 4096

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if room := mostWords - w.said.Len(); room > 0 {
		w.said.Write(p[:min(room, len(p))])
	}
	return len(p), nil
}

func (w *lastWords) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(strings.Fields(strings.TrimPrefix(w.said.String(), "error: ")), " ")
}
