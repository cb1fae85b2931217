package cluster

import (
	"context"
	"errors"
	"net"
	"net/http"
	"strings"
	"sync"
)

// mostRequests is how many requests of a client may be under way at once. Steps go on 32 at a time, each with one request.
const mostRequests = 64

// patience is how many times as many requests as are allowed at once have to go well before one more is: what is refused waits for a
// second, as API servers ask for.
const patience = 8

// pace is how many requests may be under way at once: half as many after one that the API server did not get to, one more after many that
// went well (additive increase, multiplicative decrease, as in RFC 5681). It knows no time: a server that is slow is asked less since its
// answers come late.
type pace struct {
	limit float64
	// cuts counts the times that the limit was halved. What was sent before the last of them says nothing of the limit that holds since.
	cuts int
}

// allowed is how many requests may be under way.
func (p *pace) allowed() int { return int(p.limit) }

// answered takes up how a request fared that was sent after a number of cuts.
func (p *pace) answered(refused bool, cuts int) {
	switch {
	case refused && cuts == p.cuts:
		p.limit = max(1, p.limit/2)
		p.cuts++
	case !refused:
		p.limit = min(mostRequests, p.limit+1/(patience*p.limit))
	}
}

// gate lets as many requests through at once as the API server takes. The clients of one Cluster share it.
type gate struct {
	mu   sync.Mutex
	pace pace
	// busy are under way, waiting wait for their turn, first come first served.
	busy    int
	waiting []chan struct{}
}

func newGate() *gate { return &gate{pace: pace{limit: mostRequests}} }

// paced sends requests on through a gate. client-go tries again what was refused with 429, when the answer says to; steps try again what
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

// urgent requests wait for no turn: watches last, and a lock that is not renewed in time is lost.
func urgent(r *http.Request) bool {
	return r.URL.Query().Get("watch") != "" || strings.Contains(r.URL.Path, "/leases")
}

// overloaded reports whether the API server did not get to a request: it says so with 429, and with 504 if time ran out on it (see
// WithMaxInFlightLimit, WithPriorityAndFairness and WithTimeoutForNonLongRunningRequests in k8s.io/apiserver pkg/server/filters), and
// proxies before it with 503. An eviction that a budget does not allow is answered with 429 as well, and what an API server passes on
// to nodes has answers of theirs.
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

// begin waits until a request may be sent.
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

// giveUp leaves the queue. A turn that came at the same moment is another's.
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

// end takes up how a request fared, and has those go on who wait.
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
