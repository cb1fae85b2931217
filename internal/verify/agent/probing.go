package agent

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

type probing struct {
	origin   v1alpha1.ProbeOrigin
	instance string
	// connected hears of connections, poke of failures, broken of probers that end.
	connected func(network string, local, remote netip.AddrPort)
	poke      func()
	broken    func(error)

	mu      sync.Mutex
	tallies map[string]*tally
	running map[string]*prober
	probers sync.WaitGroup
}

type prober struct {
	asking *asking
	stop   context.CancelFunc
}

func (p *probing) set(ctx context.Context, targets []target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	wanted := map[string]target{}
	for _, t := range targets {
		wanted[t.Name] = t
	}
	for name, r := range p.running {
		t, still := wanted[name]
		if still && reflect.DeepEqual(t, r.asking.target) {
			continue
		}
		r.asking.takeAway(now, !still || t.Address != r.asking.target.Address || t.Resolver != r.asking.target.Resolver)
		r.stop()
		delete(p.running, name)
	}
	for _, t := range targets {
		if p.running[t.Name] == nil {
			p.begin(ctx, t, now)
		}
	}
}

func (p *probing) begin(ctx context.Context, t target, now time.Time) {
	config, err := probe.Config{Targets: []probe.Target{t.Target}}.Resolve("")
	if err != nil { // those of the Migration have been through it
		p.broken(fmt.Errorf("probe %s: %w", t.Name, err))
		return
	}
	if p.tallies[t.Name] == nil {
		p.tallies[t.Name] = newTally(t, p.origin, p.instance, now)
	}
	asking := p.tallies[t.Name].ask(t, now)
	own := probe.New(config, func(w probe.Interval) error { asking.window(w); return nil })
	own.OnConnect = p.connected
	own.OnFailure = func(_ string, scheduled time.Time, failure *probe.Failure) {
		asking.failed(scheduled, failure, time.Now())
		p.poke()
	}
	// The target goes before its probing ends.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	p.running[t.Name] = &prober{asking: asking, stop: stop}
	p.probers.Go(func() {
		defer stop()
		err := own.Run(ctx)
		asking.done()
		if err != nil {
			p.broken(fmt.Errorf("probe %s: %w", t.Name, err))
		}
	})
}

// end stops all and waits for requests under way, up to limit.
func (p *probing) end(limit time.Duration) {
	p.mu.Lock()
	for name, r := range p.running {
		r.asking.takeAway(time.Now(), false)
		r.stop()
		delete(p.running, name)
	}
	p.mu.Unlock()
	ended := make(chan struct{})
	go func() { p.probers.Wait(); close(ended) }()
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-ended:
	case <-late.C:
	}
}

// draw makes the reports of all probes but those that ended before since; keep marks them as
// written.
func (p *probing) draw(since time.Time) (reports []v1alpha1.ProbeReport, keep func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var used []*tally
	for _, name := range slices.Sorted(maps.Keys(p.tallies)) {
		t := p.tallies[name]
		if t.gone(since) {
			continue
		}
		report, err := t.draw()
		if err != nil {
			return nil, nil, fmt.Errorf("probe %s: %w", name, err)
		}
		reports, used = append(reports, report), append(used, t)
	}
	return reports, func() {
		for _, t := range used {
			t.retain()
		}
	}, nil
}
