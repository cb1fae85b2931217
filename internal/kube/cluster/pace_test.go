package cluster

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestPace(t *testing.T) {
	type answers struct {
		n       int
		refused bool
		// late are those sent before the last cut.
		late bool
	}
	for _, tt := range []struct {
		name  string
		limit float64
		then  []answers
		want  int
	}{
		{"stays at the most", 64, []answers{{1000, false, false}}, 64},
		{"half after a refusal", 64, []answers{{1, true, false}}, 32},
		{"half of the half after one that was sent since", 64, []answers{{2, true, false}}, 16},
		{"what was sent before the cut does not count", 64, []answers{{1, true, false}, {31, true, true}}, 32},
		{"never none", 2, []answers{{100, true, false}}, 1},
		{"one more after many", 4, []answers{{4*patience + 4, false, false}}, 5},
		{"not after few", 4, []answers{{4, false, false}}, 4},
		{"grows again", 1, []answers{{60 * patience, false, false}}, 11},
		{"to the most", 1, []answers{{5000 * patience, false, false}}, 64},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := pace{limit: tt.limit}
			for _, a := range tt.then {
				for range a.n {
					cuts := p.cuts
					if a.late {
						cuts--
					}
					p.answered(a.refused, cuts)
				}
			}
			if p.allowed() != tt.want {
				t.Errorf("%d allowed, want %d", p.allowed(), tt.want)
			}
		})
	}
}

func TestOverloaded(t *testing.T) {
	for _, tt := range []struct {
		path string
		code int
		err  error
		want bool
	}{
		{path: "/api/v1/services", code: http.StatusOK},
		{path: "/api/v1/services", code: http.StatusConflict},
		{path: "/api/v1/services", code: http.StatusTooManyRequests, want: true},
		{path: "/api/v1/services", code: http.StatusGatewayTimeout, want: true},
		{path: "/api/v1/services", code: http.StatusServiceUnavailable, want: true},
		{path: "/api/v1/namespaces/a/pods/b/eviction", code: http.StatusTooManyRequests},
		{path: "/api/v1/nodes/a:30000/proxy/", code: http.StatusServiceUnavailable},
		{path: "/api/v1/services", err: context.DeadlineExceeded, want: true},
		{path: "/api/v1/services", err: context.Canceled},
		{path: "/api/v1/services", err: errors.New("connection refused")},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.path, http.NoBody)
		if got := overloaded(r, &http.Response{StatusCode: tt.code}, tt.err); got != tt.want {
			t.Errorf("%s %d %v: %t", tt.path, tt.code, tt.err, got)
		}
	}
}

// TestPaceFindsWhatAServerTakes: rounds of as many requests as are allowed meet a server that takes
// four at once. The control sends as many as ever.
func TestPaceFindsWhatAServerTakes(t *testing.T) {
	const takes, rounds = 4, 200
	run := func(adapts bool) (done, refused int) {
		p := pace{limit: mostRequests}
		for range rounds {
			sent, cuts := p.allowed(), p.cuts
			for i := range sent {
				if i < takes {
					done++
				} else {
					refused++
				}
				if adapts {
					p.answered(i >= takes, cuts)
				}
			}
		}
		return done, refused
	}
	done, refused := run(true)
	t.Logf("%d done, %d refused", done, refused)
	if done < rounds*takes*3/4 || refused > done/5 {
		t.Errorf("%d done, %d refused", done, refused)
	}
	if done, refused := run(false); refused < 10*done {
		t.Errorf("control: %d done, %d refused", done, refused)
	}
}

// held is a server that answers when it is let.
type held struct{ came, answer chan struct{} }

func (h held) RoundTrip(r *http.Request) (*http.Response, error) {
	h.came <- struct{}{}
	<-h.answer
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

// TestWaitingRequests: one that waits for its turn ends with its context, leaves no turn behind,
// and holds up no lock.
func TestWaitingRequests(t *testing.T) {
	h := held{came: make(chan struct{}), answer: make(chan struct{})}
	p := paced{gate: newGate(), next: h}
	p.pace.limit = 1
	send := func(ctx context.Context, path string) chan error {
		end := make(chan error, 1)
		go func() {
			answer, err := p.RoundTrip(httptest.NewRequest(http.MethodGet, path, http.NoBody).WithContext(ctx))
			if err == nil {
				_ = answer.Body.Close()
			}
			end <- err
		}()
		return end
	}
	first := send(t.Context(), "/api/v1/services")
	<-h.came
	ctx, cancel := context.WithCancel(t.Context())
	second := send(ctx, "/api/v1/services")
	cancel()
	if err := <-second; !errors.Is(err, context.Canceled) {
		t.Errorf("one that waited ended with %v", err)
	}
	lock := send(t.Context(), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/replumb")
	<-h.came
	h.answer <- struct{}{}
	h.answer <- struct{}{}
	for _, end := range []chan error{first, lock} {
		if err := <-end; err != nil {
			t.Error(err)
		}
	}
	third := send(t.Context(), "/api/v1/services")
	<-h.came
	h.answer <- struct{}{}
	if err := <-third; err != nil || p.busy != 0 {
		t.Errorf("%v; %d under way", err, p.busy)
	}
}
