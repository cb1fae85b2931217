// Package lossguard judges, by what the agents on the nodes report, whether a migration may go on.
package lossguard

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/verify/leftaddress"
)

// Soak waits until no client has used an old address for a while.
//
// Times of one node are compared with each other only; waiting goes by the clock here. Only reports
// since the step began count.
//
// A client that returns now and then is waited for until it is away for longer than ever. That none
// is seen counts of nodes alone that watch every address.
type Soak struct {
	Client    client.Reader
	Migration string
	// Watch, if set, knows which reports are by the agents of their nodes: no others count.
	Watch *Watch
	// Addresses, if set, are those that are to go, as texts: who uses others is not in the way.
	Addresses map[string]bool
	// Left, if set, reads what agents have to watch. A node that watches less has shown nothing.
	Left func(context.Context) (leftaddress.Addresses, error)
	// Must has the Services by the addresses that they have left: all of them are to be watched.
	Must map[netip.Addr]string
	// Length is for how long none must have been used.
	Length time.Duration
	// Limit is for how long the agent of a ready node may be silent. Default: two minutes.
	Limit time.Duration
	// Within is how long to wait in all. Default: a day.
	Within time.Duration
	// Now is the clock. Default: time.Now.
	Now func() time.Time

	// looked is the latest look, used when an old address was last used, or the first look.
	looked, used time.Time
	// message is what the latest look came to.
	message error
	nodes   map[string]*soakNode
	clients map[soakKey]*soakClient
	// unready are nodes that were not waited for.
	unready []string
	left    leftaddress.Addresses
	// read is when left was.
	read time.Time
}

type soakNode struct {
	instance string
	sequence int64
	// heard is when it last reported or was first expected; reported is before its last report.
	heard, reported time.Time
	problem         string
	// lacks is what it does not watch by its last report; empty, if it watches all.
	lacks string
}

type soakKey struct{ node, address, protocol, source, pod string }

type soakClient struct {
	OldAddressClient
	// used is when it last used the address, as far as known; first is when it did first.
	used, first time.Time
	// again says that it was found more than once, so that it is not only a memory of the node.
	again bool
}

var (
	_ engine.Timed  = (*Soak)(nil)
	_ engine.Waiter = (*Soak)(nil)
	_ engine.Guide  = (*Soak)(nil)
	_ engine.Noter  = (*Soak)(nil)
)

func (s *Soak) ID() string { return "soak" }

func (s *Soak) Title() string { return "Wait until no client uses old addresses" }

func (s *Soak) Waits() {}

func (s *Soak) Deadline() time.Duration {
	if s.Within > 0 {
		return s.Within
	}
	return 24 * time.Hour
}

// State is pending: that an address is not used is only seen by watching it.
func (s *Soak) State(context.Context) (engine.State, error) { return engine.Pending, nil }

func (s *Soak) Do(context.Context) error { return nil }

// Guide says what to do about clients. It says nothing until there is one that stays.
func (s *Soak) Guide() string {
	for _, c := range s.clients {
		if c.Open > 0 || c.again {
			return fmt.Sprintf(
				`restart the pods that still use old addresses, so that they look names up again. A client that is only an address
is a process of the node, a pod with hostNetwork, or a machine whose packets the node passes on: restart it, or correct the address it
is configured with. replumb status %[1]s lists all of them. replumb goes on by itself when none is left.
One that comes now and then is waited for until it has been away for longer than ever before.
To go on without them: replumb finish %[1]s --leave-clients. Addresses they use will then no longer answer.`,
				s.Migration,
			)
		}
	}
	return ""
}

// Note names nodes of which it is not known whether clients there use old addresses.
func (s *Soak) Note() string {
	if len(s.unready) == 0 {
		return ""
	}
	return fmt.Sprintf("not ready, and not waited for: %s. Who uses old addresses there is not known", listed("node", s.unready))
}

func (s *Soak) Verify(ctx context.Context) error {
	now := s.now()
	if s.message != nil && now.Sub(s.looked) < s.every() {
		return s.message
	}
	reports, nodes := &v1alpha1.NodeReportList{}, &corev1.NodeList{}
	if err := s.Client.List(ctx, reports, client.MatchingLabels{v1alpha1.LabelMigration: s.Migration}); err != nil {
		return fmt.Errorf("nodereports: %w", err)
	}
	if err := s.Client.List(ctx, nodes); err != nil {
		return fmt.Errorf("nodes: %w", err)
	}
	s.begin(now)
	if err := s.readLeft(ctx, reports.Items, now); err != nil {
		return err
	}
	more := 0
	for i := range reports.Items {
		if s.Watch != nil {
			reports.Items[i] = *s.Watch.sincere(&reports.Items[i])
		}
		if s.observe(&reports.Items[i], now) {
			s.see(&reports.Items[i], now)
			if reports.Items[i].Status.MoreClients > 0 || s.nodes[reports.Items[i].Name].lacks != "" { // who uses what is not known
				s.used = now
			}
		}
		more += reports.Items[i].Status.MoreClients
	}
	s.looked = now
	ready, err := s.silent(nodes.Items, now)
	if err != nil {
		return err
	}
	s.message = s.evaluate(ctx, ready, more, now)
	return s.message
}

func (s *Soak) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

func (s *Soak) limit() time.Duration {
	if s.Limit > 0 {
		return s.Limit
	}
	return 2 * time.Minute
}

// every is the pause between looks: with more nodes, looks cost more and reports are rarer.
func (s *Soak) every() time.Duration {
	return min(time.Duration(len(s.nodes))*time.Second/40, s.limit()/4)
}

// begin prepares for a look.
func (s *Soak) begin(now time.Time) {
	if s.nodes == nil {
		s.nodes, s.clients = map[string]*soakNode{}, map[soakKey]*soakClient{}
		s.used, s.looked = now, now
	}
	if now.Sub(s.looked) > s.limit()/2 { // the API server was away, or this machine: who was silent meanwhile is not known
		for _, n := range s.nodes {
			n.heard = now
		}
	}
}

// observe notes that an agent has reported, and returns whether that is new. A first report may be
// of an agent that has gone.
func (s *Soak) observe(r *v1alpha1.NodeReport, now time.Time) bool {
	var agent *v1alpha1.AgentReport
	for i := range r.Status.Agents {
		if r.Status.Agents[i].Origin == v1alpha1.FromHost {
			agent = &r.Status.Agents[i]
		}
	}
	if agent == nil {
		return false
	}
	n, known := s.nodes[r.Name]
	if !known {
		n = &soakNode{heard: now}
		s.nodes[r.Name] = n
	}
	n.problem, n.lacks = agent.Problem, s.lacks(r)
	if known && n.instance == agent.Instance && n.sequence == agent.Sequence {
		return false
	}
	n.instance, n.sequence = agent.Instance, agent.Sequence
	if known && agent.Problem == "" {
		n.heard = now
		if n.lacks == "" {
			n.reported = s.looked // it came after the look before
		}
	}
	return true
}

// see takes in who uses what, by a report that is new.
func (s *Soak) see(r *v1alpha1.NodeReport, now time.Time) {
	left, reported := map[soakKey]bool{}, reportedAt(r)
	for _, c := range Clients([]v1alpha1.NodeReport{*r}) {
		if s.Addresses != nil && !s.Addresses[host(c.Address)] {
			continue
		}
		key := soakKey{c.Node, c.Address, c.Protocol, c.Source, c.Pod}
		left[key] = true
		have := s.clients[key]
		switch {
		case have == nil && (c.Gone || c.Past(reported)):
			used := now.Add(-reported.Sub(c.LastSeen.Time))
			s.clients[key] = &soakClient{OldAddressClient: c, used: used, first: c.began(used)}
			continue
		case have == nil:
			s.clients[key] = &soakClient{OldAddressClient: c, used: now, first: c.began(now), again: s.looked.Before(now)}
			s.used = now
			continue
		case !c.Gone && c.Open > 0 || !c.LastSeen.Equal(&have.LastSeen):
			have.used, have.again = now, true
			s.used = now
		}
		have.OldAddressClient, have.first = c, c.began(have.used)
	}
	for key := range s.clients {
		if key.node == r.Name && !left[key] {
			delete(s.clients, key)
		}
	}
}

// silent returns the ready nodes, and fails if one of them has been silent for too long.
func (s *Soak) silent(nodes []corev1.Node, now time.Time) (ready []string, err error) {
	s.unready = nil
	for i := range nodes {
		name := nodes[i].Name
		n := s.nodes[name]
		if n == nil {
			n = &soakNode{heard: now}
			s.nodes[name] = n
		}
		if !inventory.NodeReady(&nodes[i]) {
			s.unready = append(s.unready, name)
			n.heard = now // once it is ready again, its agent has its time to begin
			continue
		}
		ready = append(ready, name)
		switch {
		case now.Sub(n.heard) < s.limit():
		case n.problem != "":
			return nil, fmt.Errorf("node %s: its agent cannot see who uses old addresses: %s", name, n.problem)
		default:
			return nil, fmt.Errorf("node %s: its agent has not reported for %s", name, s.limit())
		}
	}
	return ready, nil
}

// evaluate says what to wait for; nil, if no ready node has seen a client for long enough.
func (s *Soak) evaluate(ctx context.Context, ready []string, more int, now time.Time) error {
	if using := s.stillThere(ctx, s.using(ready, now)); len(using) > 0 {
		return engine.NotYet("%s", inTheWay(using, more))
	}
	if back := s.mayComeBack(now); back != "" {
		return engine.NotYet("%s", back)
	}
	if missing := s.unwatched(ready); missing != "" {
		return engine.NotYet("%s", missing)
	}
	until := s.used.Add(s.Length)
	var waiting []string
	for _, name := range ready {
		if n := s.nodes[name]; n.reported.IsZero() || n.reported.Before(until) {
			waiting = append(waiting, name)
		}
	}
	switch {
	case now.Before(until) && more > 0:
		return engine.NotYet("%d more clients than nodes have room for in their reports may use old addresses", more)
	case now.Before(until):
		return engine.NotYet("no client is seen to use an old address: waiting until that has been so for %s", s.Length)
	case len(waiting) > 0:
		return engine.NotYet("no client is seen to use an old address: waiting for the next report of %s", listed("node", waiting))
	}
	return nil
}

// using are the clients in the way. Open connections of nodes that are not ready do not count.
func (s *Soak) using(ready []string, now time.Time) []OldAddressClient {
	var out []OldAddressClient
	for key, c := range s.clients {
		if c.Gone {
			continue
		}
		if c.Open > 0 && slices.Contains(ready, key.node) || now.Sub(c.used) < s.Length {
			out = append(out, c.OldAddressClient)
		}
	}
	return out
}
