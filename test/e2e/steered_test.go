package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/machine"
)

const (
	// steeredLooks is how often a steered balancer asks API servers whether they are ready, and how long they may take to say so.
	steeredLooks = 500 * time.Millisecond
	steeredWaits = 2 * time.Second
)

// steered is a load balancer outside of the machines of a lab that leads all connections to one API server for as long as that is ready, and
// else to the next. Connections that there are stay where they are, as before any load balancer of that kind.
type steered struct {
	fabric *machine.Handle
	// to are API servers, the one that all are led to first.
	to []string

	mu    sync.Mutex
	ready map[string]bool
	// led counts connections by where they were led.
	led map[string]int
}

// steer starts a balancer that favours a control plane, and returns a kubeconfig that leads to it.
func steer(t *testing.T, l *lab.Lab, favours string) (s *steered, kubeconfig string) {
	t.Helper()
	fabric, err := l.Machine(l.Machines()[0])
	must(t, err)
	s = &steered{fabric: fabric, ready: map[string]bool{}, led: map[string]int{}}
	for _, m := range l.Members {
		switch {
		case m.Name == favours:
			s.to = slices.Insert(s.to, 0, apiServerOf(m))
		case m.Role == lab.ControlPlane:
			s.to = append(s.to, apiServerOf(m))
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	t.Cleanup(func() { cancel(); _ = listener.Close() })
	for _, at := range s.to {
		go s.watch(ctx, at)
	}
	go s.serve(ctx, listener)

	config, err := clientcmd.LoadFromFile(l.Kubeconfig())
	must(t, err)
	for _, c := range config.Clusters {
		c.Server = "https://" + listener.Addr().String()
	}
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	must(t, clientcmd.WriteToFile(*config, kubeconfig))
	eventually(t, settled, func() error {
		if at := s.order()[0]; at != s.to[0] {
			return fmt.Errorf("it leads to %s", at)
		}
		return nil
	})
	return s, kubeconfig
}

func apiServerOf(m lab.Member) string { return net.JoinHostPort(m.Address.String(), "6443") }

func (s *steered) watch(ctx context.Context, at string) {
	client := &http.Client{Timeout: steeredWaits, Transport: &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DialContext: s.fabric.Dial,
	}}
	tick := time.NewTicker(steeredLooks)
	defer tick.Stop()
	for ctx.Err() == nil {
		ready := false
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+at+"/readyz", http.NoBody)
		if err == nil {
			if answer, err := client.Do(r); err == nil {
				_ = answer.Body.Close()
				ready = answer.StatusCode == http.StatusOK
			}
		}
		s.mu.Lock()
		s.ready[at] = ready
		s.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-tick.C:
		}
	}
}

// order is the order in which API servers are tried.
func (s *steered) order() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	order := slices.Clone(s.to)
	slices.SortStableFunc(order, func(a, b string) int {
		switch {
		case s.ready[a] == s.ready[b]:
			return 0
		case s.ready[a]:
			return -1
		}
		return 1
	})
	return order
}

// elsewhere is how many connections were led to other API servers than the favourite.
func (s *steered) elsewhere() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, connections := range s.led {
		if at != s.to[0] {
			n += connections
		}
	}
	return n
}

func (s *steered) serve(ctx context.Context, l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go s.lead(ctx, in)
	}
}

func (s *steered) lead(ctx context.Context, in net.Conn) {
	defer func() { _ = in.Close() }()
	for _, at := range s.order() {
		within, cancel := context.WithTimeout(ctx, steeredWaits)
		out, err := s.fabric.Dial(within, "tcp", at)
		cancel()
		if err != nil {
			continue
		}
		s.mu.Lock()
		s.led[at]++
		s.mu.Unlock()
		ended := make(chan struct{}, 2)
		for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
			go func() { _, _ = io.Copy(pair[0], pair[1]); ended <- struct{}{} }()
		}
		select {
		case <-ended:
		case <-ctx.Done():
		}
		_ = out.Close()
		return
	}
}
