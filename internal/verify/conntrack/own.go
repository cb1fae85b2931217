package conntrack

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Flows of one's own are remembered until the kernel has forgotten them: for ownGrace, at least, after the table was last seen with
// them, which leaves time for what is reported before it is there. While the table is not read, nothing is forgotten but what is too much.
const (
	ownGrace = 2 * time.Minute
	ownMany  = 1 << 16
)

// own are the flows of this process, in two generations. What is there when it is young stays; the old ones are forgotten as one.
type own struct {
	mu         sync.Mutex
	young, old map[endpoints]struct{}
	since      time.Time
}

func (o *own) tell(key endpoints, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.young == nil || len(o.young) >= ownMany {
		o.age(now)
	}
	o.young[key] = struct{}{}
}

// has reports whether a flow is one's own, and remembers that it is still there.
func (o *own) has(f flow) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.knows(f.endpoints) {
		o.young[f.endpoints] = struct{}{}
		return true
	}
	return f.failed() && o.knows(endpoints{protocol: f.protocol, to: f.to})
}

func (o *own) knows(key endpoints) bool {
	if _, ok := o.young[key]; ok {
		return true
	}
	_, ok := o.old[key]
	return ok
}

// prune forgets, after a look at the table, what it has not had for long.
func (o *own) prune(now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now.Sub(o.since) > ownGrace {
		o.age(now)
	}
}

func (o *own) age(now time.Time) {
	o.young, o.old, o.since = map[endpoints]struct{}{}, o.young, now
}

// Own tells of a connection that this process has made, or a UDP socket that it sends from: it is no client. network is tcp or udp, or
// either with 4 or 6. Of a dial that came to nothing there is no local address: the zero one makes what such dials leave behind no
// clients either, as far as they are of the node itself.
func (t *Table) Own(network string, local, remote netip.AddrPort) {
	protocol := udp
	if strings.HasPrefix(network, "tcp") {
		protocol = tcp
	}
	key := endpoints{protocol: protocol, to: plain(remote)}
	if local.Addr().IsValid() {
		key.from = plain(local)
	}
	t.own.tell(key, t.now())
}

func plain(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().Unmap().WithZone(""), a.Port())
}
