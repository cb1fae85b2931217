package main

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/lab/lab"
)

// gates are attended by the operator of the cluster: it does what a command waits for, while there is no trouble.
type gates struct {
	lab  *lab.Lab
	lock sync.Locker
	// What the cluster shall have: the address of the Service kubernetes, that of cluster DNS, and the API servers' range.
	kubernetes, dns netip.Addr
	serviceCIDR     netip.Prefix
}

// toward are the gates on the way to a range, in which a lab has its own Services at these places.
func toward(l *lab.Lab, lock sync.Locker, to netip.Prefix) gates {
	b := to.Addr().As4()
	return gates{
		lab: l, lock: lock, serviceCIDR: to,
		kubernetes: netip.AddrFrom4([4]byte{b[0], b[1], b[2], 1}), dns: netip.AddrFrom4([4]byte{b[0], b[1], b[2], 10}),
	}
}

// act does what a gate waits for.
func (g gates) act(ctx context.Context, step string) error {
	g.lock.Lock()
	defer g.lock.Unlock()
	switch step {
	case "gate/certificates":
		return g.lab.ControlPlaneNodes().IssueCertificates(ctx, []netip.Addr{g.kubernetes})
	case "gate/kubelets":
		return g.lab.Workers().RestartKubelets(ctx, g.dns)
	case "gate/api-servers":
		return g.lab.ControlPlaneNodes().RestartAPIServers(ctx, []netip.Prefix{g.serviceCIDR}, nil)
	}
	return fmt.Errorf("no one knows what to do at %s", step)
}

// waits reports whether an event says that the operator is waited for.
func waits(e engine.Event) bool { return e.Kind == engine.StepWaiting && e.Guide != "" }

// attendant acts at each gate once until it has been passed, beside the run, and keeps what went wrong. A gate that was passed is waited at
// again when a node has joined since as the others were before.
type attendant struct {
	act     func(ctx context.Context, step string) error
	acting  sync.WaitGroup
	mu      sync.Mutex
	visited map[string]bool
	err     error
}

func (a *attendant) see(ctx context.Context, e engine.Event, failed func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged {
		delete(a.visited, e.Step)
	}
	if !waits(e) || a.visited[e.Step] {
		return
	}
	a.visited[e.Step] = true
	a.acting.Go(func() {
		if err := a.act(ctx, e.Step); err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.err = fmt.Errorf("at %s: %w", e.Step, err)
			failed()
		}
	})
}

// done waits until all is done that was begun: an operator does not notice that a command was killed.
func (a *attendant) done() error {
	a.acting.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}
