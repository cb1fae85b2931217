package etcdrelay

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/kube/cluster"
)

// TestConnect: what a process writes arrives, what is written it reads, and it ends with the
// connection.
func TestConnect(t *testing.T) {
	ended := make(chan struct{})
	dialing, dialed := context.WithCancel(t.Context())
	c, err := connect(dialing, func(ctx context.Context, s cluster.Streams) error {
		defer close(ended)
		fmt.Fprint(s.Out, greeting)
		line, err := bufio.NewReader(s.In).ReadString('\n')
		if err != nil {
			return err
		}
		fmt.Fprint(s.Out, strings.ToUpper(line))
		<-ctx.Done()
		return ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	dialed() // as gRPC does: the connection lasts
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(c).ReadString('\n'); err != nil || line != "HELLO\n" {
		t.Errorf("it answered %q, %v", line, err)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	<-ended
}

// TestConnectionBreaks: a reader learns at once that the process, or what leads to it, is gone.
func TestConnectionBreaks(t *testing.T) {
	gone := make(chan struct{})
	c, err := connect(t.Context(), func(_ context.Context, s cluster.Streams) error {
		fmt.Fprint(s.Out, greeting)
		<-gone
		return errors.New("the API server has ended")
	})
	if err != nil {
		t.Fatal(err)
	}
	close(gone)
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("reading ended with %v", err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("it can be written to")
	}
}

func TestConnectFails(t *testing.T) {
	soon, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for name, tt := range map[string]struct {
		ctx  context.Context
		run  command
		want string
	}{
		"the process says why": {t.Context(), func(_ context.Context, s cluster.Streams) error {
			fmt.Fprintln(s.Err, "error: etcd at 127.0.0.1:2379: x509: it has expired\nhint: renew it")
			return errors.New("command terminated with exit code 1")
		}, "etcd at 127.0.0.1:2379: x509: it has expired hint: renew it"},
		"there is none": {t.Context(), func(context.Context, cluster.Streams) error { return errors.New("pods etcd-relay not found") }, "pods etcd-relay not found"},
		"it is another program": {t.Context(), func(_ context.Context, s cluster.Streams) error {
			fmt.Fprint(s.Out, "usage: another program\n")
			return nil
		}, `it answers with "usage: ano"`},
		"it is silent": {soon, func(ctx context.Context, _ cluster.Streams) error {
			<-ctx.Done()
			return ctx.Err()
		}, "it does not connect in time"},
	} {
		if _, err := connect(tt.ctx, tt.run); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}
