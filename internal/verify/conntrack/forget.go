package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// leftover is an entry of datagrams that are led to a server, by which the next one from the same port is led there as well.
type leftover struct {
	flow
	// server is who answers.
	server netip.AddrPort
	// key names this very entry to the kernel.
	key []byte
}

// entries are what can be done with entries one by one.
type entries struct {
	// list hands over all of them.
	list func(each func(leftover)) error
	// get is an entry as it is now; not ok if it is gone.
	get func(key []byte) (leftover, bool, error)
	// remove deletes it. That it is gone is no error.
	remove func(key []byte) error
}

// Forget deletes the entries by which datagrams for a Service are led to one of the servers, those whose latest packet was longer ago than
// idle, and returns how many are left. Datagrams that were sent to a server itself are left alone.
//
// An answer that comes after its entry was deleted is not translated, and lost: so an entry with a question under way must not be deleted.
// Each is therefore looked at again right before. Only a question that comes in between, some microseconds, would be lost.
func (t *Table) Forget(servers []netip.Addr, idle time.Duration) (left int, err error) {
	limits := t.timeouts()
	var found []leftover
	if err := t.entries.list(func(e leftover) {
		if e.protocol == udp && e.server.Addr() != e.to.Addr() && slices.Contains(servers, e.server.Addr()) {
			found = append(found, e)
		}
	}); err != nil {
		return 0, fmt.Errorf("reading connection tracking: %w", err)
	}
	for _, e := range found {
		if !limits.rests(e.flow, idle) {
			left++
			continue
		}
		now, there, err := t.entries.get(e.key)
		switch {
		case err != nil:
			return 0, fmt.Errorf("reading an entry of connection tracking: %w", err)
		case !there:
			continue
		case !limits.rests(now.flow, idle):
			left++
			continue
		}
		if err := t.entries.remove(e.key); err != nil {
			return 0, fmt.Errorf("deleting an entry of connection tracking: %w", err)
		}
	}
	return left, nil
}

// rests reports whether the latest packet of a flow was at least so long ago. The kernel tells whole seconds of what is left, cut off.
func (t *timeouts) rests(f flow, idle time.Duration) bool {
	return idle == 0 || t.idle(f) >= idle+time.Second
}
