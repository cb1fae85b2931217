package agent

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/apiserver"
)

const (
	defaultInterval = 10 * time.Second
	defaultDomain   = "cluster.local"
	// nodesASecond is how many nodes' agents may report in a second, if nothing happens.
	nodesASecond = 20
	// endLimit is how long requests under way are waited for at the end.
	endLimit = 6 * time.Second
)

// Agent is one of the two on a node.
type Agent struct {
	Client client.WithWatch
	// Origin is the agent's network, Host or Pod. The Host one also passes barriers, connects to
	// moved Services, and reports clients of old addresses and API servers.
	Origin v1alpha1.ProbeOrigin
	// Migration that goes on.
	Migration string
	// Ranges bound the addresses of Services that it handles. None means that no Services move.
	Ranges []netip.Prefix
	// Node it is on, and the addresses of that, one for each family.
	Node    string
	NodeIPs []netip.Addr
	// Instance is the UID of its pod.
	Instance string
	// Version of replumb.
	Version string
	// Domain of the cluster. Default: cluster.local.
	Domain string
	// NameServer is kubelet's; none means that of resolv.conf, forever.
	NameServer netip.Addr
	// Flows tells who uses old addresses. Without it no client is reported.
	Flows Flows
	// Servers looks at each API server that the agent knows. Without it none is reported.
	Servers func(context.Context) []v1alpha1.APIServerReport
	// Self allows probes of the node itself, for tests.
	Self bool
	// Interval is how often it reports when there are no news. Default: 10 s.
	Interval time.Duration
	// Log hears what the report cannot say: why it was not written. May be nil.
	Log func(error)

	watched    *watched
	gate       *gate
	singleGate *gate
	names      *nameServers
	probing    *probing
	barrier    *barrier
	connecting *connecting
	clients    *clients
	servers    servers
	reporter   *reporter
	alive      aliveness
	stop       context.CancelCauseFunc

	mu       sync.Mutex
	began    netip.Addr
	problems []error
}

// Run works until ctx ends or a restart may help, also while there is no API server.
func (a *Agent) Run(ctx context.Context) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	a.prepare(stop)
	var all sync.WaitGroup
	all.Go(func() { a.watched.follow(ctx, a.Client, a.podsOf(), a.podsOf() != "" && len(a.Ranges) > 0) })
	all.Go(func() { a.follow(ctx) })
	all.Go(func() { a.gate.open(ctx, a.watched.view, a.domain(), a.opened) })
	if !a.host() && len(a.Ranges) > 0 {
		all.Go(func() { a.singleGate.open(ctx, a.watched.view, a.domain(), a.opened) })
	}
	if a.Flows != nil && a.host() {
		all.Go(func() { a.clients.follow(ctx, a.watched.view, clientsEvery) })
	}
	if a.Servers != nil && a.host() {
		all.Go(func() { a.servers.follow(ctx, a.Servers, a.serversEvery) })
	}
	all.Go(func() {
		if err := a.reporter.follow(ctx); err != nil {
			stop(err)
		}
	})
	<-ctx.Done()
	all.Wait()
	a.probing.end(endLimit)
	a.connecting.running.Wait()
	// If the last report is lost, so are its counts; the run sees a new agent.
	if s, ok := a.watched.view(); ok && s.migration != nil {
		_ = a.reporter.write(context.WithoutCancel(ctx))
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// asked4 adds the IPv4 loopback address on nodes without IPv4. See barrier.
func asked4(node []netip.Addr) []netip.Addr {
	if slices.ContainsFunc(node, netip.Addr.Is4) {
		return node
	}
	return append(slices.Clone(node), netip.AddrFrom4([4]byte{127, 0, 0, 1}))
}

func (a *Agent) prepare(stop context.CancelCauseFunc) {
	a.stop = stop
	var own func(network string, local, remote netip.AddrPort)
	if a.Flows != nil {
		own = a.Flows.Own
	}
	a.alive.report = v1alpha1.AgentReport{Origin: a.Origin, Instance: a.Instance, Version: a.Version}
	a.watched = newWatched(a.Migration, a.Ranges)
	a.names = &nameServers{first: a.NameServer}
	a.gate = &gate{find: view.probe, connected: own, names: a.names}
	a.singleGate = &gate{find: view.single, optional: true, connected: own, names: a.names}
	a.reporter = &reporter{
		client: a.Client, node: a.Node, migration: a.Migration, origin: a.Origin, draw: a.draw, every: a.interval,
		log: a.Log, news: make(chan struct{}, 1),
	}
	a.probing = &probing{
		origin: a.Origin, instance: a.Instance, connected: own, poke: a.reporter.poke, broken: stop,
		tallies: map[string]*tally{}, running: map[string]*prober{},
	}
	a.barrier = &barrier{nodes: asked4(a.NodeIPs), poke: a.reporter.poke, asked: map[types.UID]*asked{}}
	if a.Flows != nil {
		a.barrier.forget = a.Flows.Forget
	}
	a.connecting = &connecting{
		client: a.Client, instance: a.Instance, connected: own, poke: a.reporter.poke, slots: make(chan struct{}, connectsAtOnce),
	}
	a.clients = &clients{flows: a.Flows}
	if a.podsOf() != "" {
		a.reporter.found = func(before *v1alpha1.NodeReportStatus) { a.clients.recall(before.Clients) }
	}
}

func (a *Agent) host() bool     { return a.Origin == v1alpha1.FromHost }
func (a *Agent) domain() string { return cmp.Or(a.Domain, defaultDomain) }

func (a *Agent) podsOf() string {
	if a.host() && a.Flows != nil {
		return a.Node
	}
	return ""
}

func (a *Agent) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.watched.changes:
		}
		if s, ok := a.watched.view(); ok {
			a.obey(ctx, s)
		}
	}
}

func (a *Agent) obey(ctx context.Context, s view) {
	if a.host() {
		a.barrier.follow(ctx, s.own(v1alpha1.RoleSentinel))
		a.connecting.follow(ctx, movers(s))
	}
	o := orders{origin: a.Origin, domain: a.domain(), view: s, began: a.beginning(s), server: a.names.server(s), self: a.Self}
	o.answered, o.named, _ = a.gate.state()
	o.singleAnswered, o.singleNamed, _ = a.singleGate.state()
	wanted, problems := targets(o)
	a.probing.set(ctx, wanted)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.problems = nil
	for _, p := range problems {
		a.problems = append(a.problems, errors.New(p))
	}
}

func (a *Agent) opened() {
	a.watched.changed()
	a.reporter.poke()
}

func (a *Agent) beginning(s view) netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if svc := s.probe(); svc != nil && !a.began.IsValid() {
		a.began = clusterIP(svc)
	}
	return a.began
}

func (a *Agent) interval() time.Duration {
	every := cmp.Or(a.Interval, defaultInterval)
	s, _ := a.watched.view()
	if s.migration == nil || s.migration.Status.Proof == nil {
		return every
	}
	return max(every, time.Duration(s.migration.Status.Proof.Nodes)*time.Second/nodesASecond)
}

// serversEvery is longer than the pause between reports.
func (a *Agent) serversEvery() time.Duration { return apiserver.LookEvery * a.interval() }

func (a *Agent) draw() (*v1alpha1.NodeReportStatus, func(), error) {
	status := &v1alpha1.NodeReportStatus{}
	// A probe that has ended stays for some reports, so that how it ended is not missed.
	probes, keep, err := a.probing.draw(time.Now().Add(-3 * a.interval()))
	if err != nil {
		return nil, nil, err
	}
	status.Probes = probes
	problems := []error{a.watched.migrations.trouble(), a.watched.services.trouble()}
	if s, ok := a.watched.view(); ok && s.migration == nil {
		problems = append(problems, errors.New("there is no migration "+a.Migration))
	}
	for _, g := range []*gate{a.gate, a.singleGate} {
		_, _, why := g.state()
		problems = append(problems, why)
	}
	a.mu.Lock()
	problems = append(problems, a.problems...)
	a.mu.Unlock()
	if a.host() {
		var late []error
		status.Barriers, late = a.barrier.report()
		status.Connects = a.connecting.report()
		status.APIServers = a.servers.report()
		problems = append(problems, late...)
	}
	if a.podsOf() != "" {
		problems = append(problems, a.watched.pods.trouble(), a.clients.report(status))
		if len(a.Ranges) > 0 {
			problems = append(problems, a.watched.reserved.trouble())
		}
	}
	status.Agents = []v1alpha1.AgentReport{a.alive.next(problems)}
	return status, keep, nil
}
