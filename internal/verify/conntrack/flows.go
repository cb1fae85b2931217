// Package conntrack finds clients of addresses that Services have left, in the connection tracking
// of its network namespace.
//
// Only the client's node has entries with the original destination; nodes on the way have the
// translated one, so each client is seen once.
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
	// Kept is how long a client counts after its latest packet: longer than some entries last, and
	// than the pause between reports in large clusters.
	Kept = 5 * time.Minute

	// blur is how far two looks at an entry may differ: the kernel rounds, and skips small changes.
	blur = 2 * time.Second
)

// Table is a network namespace's connection tracking, with memory between looks.
type Table struct {
	read     func(each func(flow)) error
	entries  entries
	timeouts func() timeouts
	now      func() time.Time
	own      own

	// mu lets one look follow another. It guards the fields below.
	mu    sync.Mutex
	known map[clientKey]*client
	// latest are the flows of the node itself that were there at the latest look.
	latest map[endpoints]sighting
}

type sighting struct {
	flow
	seen time.Time
	// unjudged flows are so new that this process may not have claimed them yet.
	unjudged bool
}

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

// Clients are those that use addresses in moved, or have lately, newest first. moved has Services
// by old address, pods this node's pods by address, ending ones included and host-network ones not,
// all as namespace/name; a pod without a name is no client. Other sources are processes of the node
// or machines behind it; a new one is reported with the next call, so that this process' own flows
// (Own) are known by then.
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

// evaluate drops this process' flows, and new ones that may be its own. It counts those of the
// latter that have ended by the next look.
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

// add counts a flow, with its latest packet at seen, for its client; pod has the address now.
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

// list forgets clients of other addresses and those of long ago.
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
