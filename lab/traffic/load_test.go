package traffic

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/capacity"
)

func shopCalls() Calls {
	callees := []Callee{{Name: "cart", Address: "10.96.0.7"}, {Name: "front", Address: "10.96.0.8"}}
	rates := Rates{Request: 8, Stream: 2, LookUp: 1}
	return Call("shop", callees, rates).AndKeep(callees, rates)
}

// TestRatesAreLowered: no rate falls below one request a second, or rises.
func TestRatesAreLowered(t *testing.T) {
	calls := []Calls{shopCalls()}
	if got := perSecond(2, calls); got != 2*2*(8+8+2+1) {
		t.Errorf("%v requests a second", got)
	}
	for _, tt := range []struct {
		share                   float64
		request, stream, lookUp float64
		lowest                  bool
	}{
		{1, 8, 2, 1, false}, {0.25, 2, 1, 1, false}, {0.125, 1, 1, 1, true}, {0.01, 1, 1, 1, true},
	} {
		lowered := calls[0].at(tt.share)
		for v, want := range map[Via]float64{ByName: tt.request, ByOldAddress: tt.request, ByStream: tt.stream, ByLookUp: tt.lookUp} {
			if got := lowered.Targets[v][1].Rate; got != want {
				t.Errorf("at %v of the rates: %v requests a second %s, want %v", tt.share, got, v, want)
			}
		}
		if lowest(tt.share, calls) != tt.lowest {
			t.Errorf("%v is the lowest share: %v", tt.share, !tt.lowest)
		}
	}
	if calls[0].Targets[ByName][0].Rate != 8 {
		t.Error("lowering has changed the calls themselves")
	}
}

// TestThinned: only calls that say so lose Services, and only once.
func TestThinned(t *testing.T) {
	sparse := shopCalls()
	sparse.Sparse = true
	fewer, ok := thinned([]Calls{shopCalls(), sparse})
	if !ok || len(fewer[0].Targets[ByName]) != 2 || len(fewer[1].Targets[ByName]) != 1 || fewer[1].Targets[ByName][0].Name != "cart" {
		t.Errorf("%v, %+v", ok, fewer)
	}
	if _, ok := thinned(fewer); ok {
		t.Error("there is nothing left to leave out")
	}
}

// TestPermitsAny: calls that must not be answered have no baseline.
func TestPermitsAny(t *testing.T) {
	forbidden := Calls{Targets: map[Via][]probe.Target{}}.AndTry([]Callee{{Name: "cart", Address: "10.96.0.7"}}, Rates{Forbidden: 1})
	if permitsAny([]Calls{forbidden}) || permitsAny(nil) || !permitsAny([]Calls{forbidden, shopCalls()}) {
		t.Error("what is permitted is not told from what is not")
	}
}

// TestWaitingForResolvers: a name takes as long as a resolver's second try, and an address does not.
func TestWaitingForResolvers(t *testing.T) {
	config, sources := shopCalls().config("node1")
	for _, target := range waitingForResolvers(config).Targets {
		via := sources[target.Name].Via
		if waits := target.Timeout == resolverPatience; waits != (via == ByName || via == ByLookUp) {
			t.Errorf("%s waits for %v", target.Name, time.Duration(target.Timeout))
		}
	}
}

// TestCarries: a machine that loses requests, cannot send them, or answers slowly while nothing is changed measures nothing.
func TestCarries(t *testing.T) {
	quick, slow := probed(t, 0), probed(t, quietP99+50*time.Millisecond)
	lossy, asleep := quick, quick
	lossy.Failed, asleep.NotMeasured = 1, 1
	for name, tt := range map[string]struct {
		of   probe.Stats
		want bool
	}{
		"quick": {quick, true}, "slow": {slow, false}, "lossy": {lossy, false}, "asleep": {asleep, false}, "silent": {probe.Stats{}, false},
	} {
		if got := (Load{Baseline: tt.of}).carries(); got != tt.want {
			t.Errorf("%s: %v: %s", name, got, baselineText(tt.of))
		}
	}
	err := &TooSlowError{Load: Load{Machine: capacity.Machine{Processors: 2, Starts: 60}, Share: 0.1, Baseline: slow}}
	if code, _ := fault.ExitCode(
		err,
	); code != fault.ExitNotMeasured || fault.Advice(err) == "" ||
		!strings.Contains(err.Error(), "60 processes") {
		t.Errorf("exit code %d: %v, advice %q", code, err, fault.Advice(err))
	}
}

// probed is what a prober sees of a server that takes so long each time.
func probed(t *testing.T, takes time.Duration) probe.Stats {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		<-time.After(takes) // the answer
	}))
	defer server.Close()
	config, err := probe.Config{Targets: []probe.Target{{
		Name: "t", Kind: probe.HTTP, Address: strings.TrimPrefix(server.URL, "http://"), Rate: 5,
	}}}.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	var series probe.Series
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	err = probe.New(config, func(w probe.Interval) (err error) {
		series, err = series.Append(w)
		return err
	}).Run(ctx)
	if err != nil {
		t.Fatal(err)
	}
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return stats
}
