package conntrack

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// leftover is an entry that leads datagrams of one port to a server.
type leftover struct {
	flow
	// server is who answers.
	server netip.AddrPort
	// key names this very entry to the kernel.
	key []byte
}

type entries struct {
	// list hands over all of them.
	list func(each func(leftover)) error
	// get is an entry as it is now; not ok if it is gone.
	get func(key []byte) (leftover, bool, error)
	// remove deletes it. That it is gone is no error.
	remove func(key []byte) error
}

// Forget deletes entries of datagrams for a Service to one of the servers that have rested for
// idle, and counts the rest. Datagrams to a server itself are left alone.
//
// Without its entry an answer is not translated and lost, so none with a question under way must
// go: each is looked at again right before, which leaves microseconds.
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

// rests goes by the remaining time, which the kernel cuts to whole seconds.
func (t *timeouts) rests(f flow, idle time.Duration) bool {
	return idle == 0 || t.idle(f) >= idle+time.Second
}
