// Package conntrack reads, from the connection tracking of the network namespace that it runs in, who still uses addresses that Services
// have left.
//
// On the node where a client runs, an entry has the destination before it was translated. Nodes that packets only pass through, or end
// at, have the translated one: each client is seen once.
package conntrack

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// Kept is for how long a client counts as one that uses an address, after its latest packet. Some entries are gone after ten seconds;
	// in large clusters nodes report less often than that.
	Kept = 5 * time.Minute

	// blur is by how much two looks at the same entry may differ about its latest packet: the kernel rounds, and does not always
	// write small changes down.
	blur = 2 * time.Second
)

// Table is the connection tracking of a network namespace. It remembers, from one look to the next, what it saw.
type Table struct {
	read     func(each func(flow)) error
	entries  entries
	timeouts func() timeouts
	now      func() time.Time
	own      own

	// mu lets one look follow another. What is below belongs to it.
	mu    sync.Mutex
	known map[clientKey]*client
	// latest are the flows of the node itself that were there at the latest look.
	latest map[endpoints]sighting
}

// sighting is a flow that was there, and when its latest packet was.
type sighting struct {
	flow
	seen time.Time
	// unjudged says that it may have begun just before: its owner may be this process, and had no time to say so. The next look judges it.
	unjudged bool
}

// clientKey is one client of one port.
type clientKey struct {
	protocol uint8
	to       netip.AddrPort
	from     netip.Addr
}

type client struct {
	pod string
	// seen is by the steady clock of this process, whatever happens to the clock of the node.
	seen time.Time
	open int
	// there says that an entry is left.
	there bool
}

// New makes the Table of the network namespace of the caller of Clients.
func New() *Table {
	return &Table{read: dump, entries: kernel(), timeouts: func() timeouts { return readTimeouts(sysctls) }, now: time.Now}
}

// Clients are those that use an address of moved, or have in the last few minutes, those whose latest packet is newest first. moved has
// the Service, as namespace/name, of each old address; pods the pod, as namespace/name, of each address of a pod of this node, also
// of those that are about to end, but without those that have the node's address. A pod without a name is no client. A source that is
// in neither is a process of the node, or a machine whose packets the node passes on; a new one of these is reported with the next call,
// so that what this process has just done itself (Own) is not taken for one.
func (t *Table) Clients(moved, pods map[netip.Addr]string) ([]v1alpha1.OldAddressClient, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, limits := t.now(), t.timeouts()
	found, err := t.uses(moved, pods, &limits, now)
	if err != nil {
		return nil, fmt.Errorf("reading connection tracking: %w", err)
	}
	for _, c := range t.known {
		c.open, c.there = 0, false
	}
	for _, f := range found {
		t.add(f, pods[f.from.Addr()], now.Add(-limits.idle(f)))
	}
	return t.list(moved, now), nil
}

// uses are the flows to old addresses, without those of this process.
func (t *Table) uses(moved, pods map[netip.Addr]string, limits *timeouts, now time.Time) ([]flow, error) {
	var found []flow
	if err := t.read(func(f flow) {
		pod, isPod := pods[f.from.Addr()]
		if isPod && pod == "" || !isPod && t.own.has(f) {
			return
		}
		if _, ok := moved[f.to.Addr()]; ok {
			found = append(found, f)
		}
	}); err != nil {
		return nil, err
	}
	found = t.evaluate(found, pods, limits, now)
	t.own.prune(now)
	return found, nil
}

// evaluate leaves out flows of this process, and those that may be: which have only just been seen for the first time. Of these it counts such
// as are gone with the next look.
func (t *Table) evaluate(found []flow, pods map[netip.Addr]string, limits *timeouts, now time.Time) []flow {
	before := t.latest
	t.latest = map[endpoints]sighting{}
	found = slices.DeleteFunc(found, func(f flow) bool {
		if _, isPod := pods[f.from.Addr()]; isPod {
			return false
		}
		_, again := before[f.endpoints]
		delete(before, f.endpoints)
		idle := limits.idle(f)
		early := !again && idle <= blur
		t.latest[f.endpoints] = sighting{f, now.Add(-idle), early}
		return early || t.own.has(f) // it may have been reported meanwhile
	})
	for _, gone := range before {
		pod, isPod := pods[gone.from.Addr()]
		if gone.unjudged && (!isPod || pod != "") && !t.own.has(gone.flow) {
			t.add(gone.flow, pod, gone.seen)
		}
	}
	return found
}

// add counts a flow, whose latest packet was at seen, to its client. pod is who has the client's address now.
func (t *Table) add(f flow, pod string, seen time.Time) {
	key := clientKey{f.protocol, f.to, f.from.Addr()}
	c := t.known[key]
	if c == nil {
		c = &client{seen: seen, pod: pod}
		if t.known == nil {
			t.known = map[clientKey]*client{}
		}
		t.known[key] = c
	}
	c.there = true
	used := seen.Sub(c.seen) > blur
	if used {
		c.seen = seen
	}
	if pod != "" && (used || c.pod == "") {
		c.pod = pod
	}
	if f.open() && c.pod == pod { // else the client is gone, and only its entry was left behind
		c.open++
	}
}

// list is what is known of clients of moved addresses. Others, and those that were last seen long ago, are forgotten.
func (t *Table) list(moved map[netip.Addr]string, now time.Time) []v1alpha1.OldAddressClient {
	var out []v1alpha1.OldAddressClient
	for key, c := range t.known {
		service, ok := moved[key.to.Addr()]
		old := c.open == 0 && now.Sub(c.seen) > Kept
		if !ok || old && !c.there {
			delete(t.known, key)
		}
		if !ok || old {
			continue
		}
		out = append(out, v1alpha1.OldAddressClient{
			Address: key.to.String(), Protocol: protocolName(key.protocol), Service: service, Pod: c.pod, Source: key.from.String(),
			LastSeen: metav1.NewMicroTime(c.seen.UTC().Truncate(time.Microsecond)), Open: c.open,
		})
	}
	slices.SortFunc(out, func(a, b v1alpha1.OldAddressClient) int {
		return cmp.Or(b.LastSeen.Compare(a.LastSeen.Time), strings.Compare(a.Address, b.Address),
			strings.Compare(a.Protocol, b.Protocol), strings.Compare(a.Source, b.Source))
	})
	return out
}
