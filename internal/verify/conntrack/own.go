package conntrack

import (
	"net/netip"
	"strings"
	"sync"
	"time"
)

// Own flows are remembered until the kernel has forgotten them, and at least for ownGrace after the
// table was last read with them: reports may come before the entry. Without reads only the bound
// applies.
const (
	ownGrace = 2 * time.Minute
	ownMany  = 1 << 16
)

// own has two generations: entries seen while young stay, and old ones go as a whole.
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

// prune forgets what the table has not had for long.
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

// Own registers a connection or sending UDP socket of this process, which is no client. network is
// tcp or udp, also with 4 or 6. A failed dial has no local address: zero covers what it leaves on
// this node.
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
