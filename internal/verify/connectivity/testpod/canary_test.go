package testpod

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// free is an address of the loopback device that nothing listens at, most likely.
func free(t *testing.T) string {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func TestCall(t *testing.T) {
	open, silent := free(t), free(t)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- Serve(ctx, open) }()
	for _, tt := range []struct {
		name           string
		reach, refused []string
		want           string
	}{
		{"all as it should be", []string{open}, []string{silent}, ""},
		{"unreachable", []string{open, silent}, nil, silent + " does not answer"},
		{"not refused", []string{open}, []string{open}, open + " answers"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			err := Call(ctx, tt.reach, tt.refused)
			if (err == nil) != (tt.want == "") || (err != nil && !strings.Contains(err.Error(), tt.want)) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
	stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

func TestServeOnATakenAddress(t *testing.T) {
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if err := Serve(t.Context(), l.Addr().String()); err == nil {
		t.Error("served at an address that is taken")
	}
}
