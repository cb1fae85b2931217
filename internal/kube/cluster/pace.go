package cluster

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
)

// mostRequests is twice the number of steps that run at once, with a request each.
const mostRequests = 64

// patience is how many rounds of allowed requests have to succeed before the limit grows by one: a
// refused request waits for a second, as API servers ask for.
const patience = 8

// pace limits concurrent requests by additive increase and multiplicative decrease (RFC 5681): half
// after a refusal, one more after many successes.
type pace struct {
	limit float64
	// cuts counts the halvings. A request from before the last one says nothing about the present
	// limit.
	cuts int
}

func (p *pace) allowed() int { return int(p.limit) }

// answered adjusts the limit by the result of a request that was sent after so many cuts.
func (p *pace) answered(refused bool, cuts int) {
	switch {
	case refused && cuts == p.cuts:
		p.limit = max(1, p.limit/2)
		p.cuts++
	case !refused:
		p.limit = min(mostRequests, p.limit+1/(patience*p.limit))
	}
}

// gate holds back requests beyond the pace. The clients of one Cluster share it.
type gate struct {
	mu   sync.Mutex
	pace pace
	// busy counts requests under way, waiting is first in, first out.
	busy    int
	waiting []chan struct{}
}

func newGate() *gate { return &gate{pace: pace{limit: mostRequests}} }

// paced sends requests through a gate. client-go repeats those refused with 429, steps those that
// failed.
type paced struct {
	*gate

	next http.RoundTripper
}

func (p paced) RoundTrip(r *http.Request) (*http.Response, error) {
	if urgent(r) {
		return p.next.RoundTrip(r)
	}
	cuts, err := p.begin(r.Context())
	if err != nil {
		return nil, err
	}
	answer, err := p.next.RoundTrip(r)
	p.end(overloaded(r, answer, err), cuts)
	return answer, err
}

// urgent requests skip the queue: watches last, and a Lease must be renewed in time.
func urgent(r *http.Request) bool {
	return r.URL.Query().Get("watch") != "" || strings.Contains(r.URL.Path, "/leases")
}

// overloaded reports whether the API server did not get to a request: 429, 504 for its time-out
// (WithMaxInFlightLimit, WithPriorityAndFairness, WithTimeoutForNonLongRunningRequests in
// k8s.io/apiserver pkg/server/filters), and 503 from proxies before it. Evictions have 429 for
// budgets.
func overloaded(r *http.Request, answer *http.Response, err error) bool {
	if err != nil {
		var network net.Error
		return errors.As(err, &network) && network.Timeout()
	}
	if strings.HasSuffix(r.URL.Path, "/eviction") || strings.Contains(r.URL.Path, "/proxy/") {
		return false
	}
	switch answer.StatusCode {
	case http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

func (g *gate) begin(ctx context.Context) (cuts int, err error) {
	g.mu.Lock()
	if g.busy < g.pace.allowed() && len(g.waiting) == 0 {
		g.busy++
		cuts = g.pace.cuts
		g.mu.Unlock()
		return cuts, nil
	}
	turn := make(chan struct{})
	g.waiting = append(g.waiting, turn)
	g.mu.Unlock()
	select {
	case <-turn:
	case <-ctx.Done():
		err = ctx.Err()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if err != nil {
		g.giveUp(turn)
	}
	return g.pace.cuts, err
}

// giveUp leaves the queue, and passes on a turn that came at the same moment.
func (g *gate) giveUp(turn chan struct{}) {
	for i, w := range g.waiting {
		if w == turn {
			g.waiting = append(g.waiting[:i], g.waiting[i+1:]...)
			return
		}
	}
	g.busy--
	g.admit()
}

func (g *gate) end(refused bool, cuts int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy--
	g.pace.answered(refused, cuts)
	g.admit()
}

func (g *gate) admit() {
	for len(g.waiting) > 0 && g.busy < g.pace.allowed() {
		g.busy++
		close(g.waiting[0])
		g.waiting = g.waiting[1:]
	}
}
