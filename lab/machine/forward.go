package machine

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// How soon a forwarder notices that a target is ready or no longer is, and how long it tries to connect to one. Targets
// are a few links away on the same machine.
const (
	readyEvery   = 250 * time.Millisecond
	readyTimeout = time.Second
	dialTimeout  = 2 * time.Second
)

// start begins to forward, if there is anything to; nil, if there is not.
func (f Forward) start() (*balancer, error) {
	if len(f.To) == 0 && f.Listen == "" {
		return nil, nil
	}
	inherited, err := net.FileListener(os.NewFile(listenerFD, "listener"))
	if err != nil {
		return nil, fmt.Errorf("inherited listener: %w", err)
	}
	b := newBalancer(f.To)
	go b.watch(context.Background())
	go b.serve(inherited)
	if f.Listen == "" {
		return b, nil
	}
	var config net.ListenConfig
	inside, err := config.Listen(context.Background(), "tcp", f.Listen)
	if err != nil {
		return nil, err
	}
	go b.serve(inside)
	return b, nil
}

// balancer copies connections to one of its targets. It is how the host reaches a lab's API servers without any link
// between the two networks, and what stands before them for the nodes.
type balancer struct {
	next atomic.Uint64

	mu      sync.Mutex
	targets []string
	ready   map[string]bool
}

func newBalancer(targets []string) *balancer {
	return &balancer{targets: targets, ready: map[string]bool{}}
}

// lead has further connections go to these targets. Those that there are stay where they are.
func (b *balancer) lead(to []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.targets = slices.Clone(to)
}

// asked are the targets there is a choice between.
func (b *balancer) asked() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.targets) == 1 {
		return nil
	}
	return b.targets
}

// watch keeps asking all targets whether they are ready, until ctx ends. An API server that is going away says so
// seconds before it stops listening, and one that is coming listens before it knows who may do what.
func (b *balancer) watch(ctx context.Context) {
	client := &http.Client{Timeout: readyTimeout, Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true}, // nothing is told or believed but that it is ready
	}}
	tick := time.NewTicker(readyEvery)
	defer tick.Stop()
	for {
		var asking sync.WaitGroup
		for _, target := range b.asked() {
			asking.Go(func() {
				ready := isReady(ctx, client, target)
				b.mu.Lock()
				defer b.mu.Unlock()
				b.ready[target] = ready
			})
		}
		asking.Wait()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func isReady(ctx context.Context, client *http.Client, target string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+target+"/readyz", nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	_ = response.Body.Close()
	return response.StatusCode == http.StatusOK
}

// order is the order in which to try the targets for the next connection: the ready ones first, each set in turn.
func (b *balancer) order() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.targets) == 0 {
		return nil
	}
	first := int(b.next.Add(1) % uint64(len(b.targets)))
	order := slices.Concat(b.targets[first:], b.targets[:first])
	slices.SortStableFunc(order, func(x, y string) int {
		switch {
		case b.ready[x] == b.ready[y]:
			return 0
		case b.ready[x]:
			return -1
		}
		return 1
	})
	return order
}

// serve forwards what l accepts until l is closed.
func (b *balancer) serve(l net.Listener) {
	for {
		in, err := l.Accept()
		if err != nil {
			return
		}
		go b.forward(in)
	}
}

func (b *balancer) forward(in net.Conn) {
	defer func() { _ = in.Close() }()
	dialer := net.Dialer{Timeout: dialTimeout}
	for _, target := range b.order() {
		out, err := dialer.DialContext(context.Background(), "tcp", target)
		if err != nil {
			continue
		}
		join(in, out)
		return
	}
}

// join copies both ways until either side closes, which ends both.
func join(in, out net.Conn) {
	defer func() { _ = out.Close() }()
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{in, out}, {out, in}} {
		go func() { _, _ = io.Copy(pair[0], pair[1]); done <- struct{}{} }()
	}
	<-done
}
