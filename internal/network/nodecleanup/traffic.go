package nodecleanup

import (
	"net/netip"
	"slices"
	"time"
)

// Watcher looks for clients from outside.
type Watcher struct {
	// Window is how long it looks.
	Window time.Duration
	// Inside are addresses of nodes, and ranges of pods and Services: who has one is no client.
	Inside []netip.Prefix
	// Ignore are ranges of addresses outside that are no clients.
	Ignore []netip.Prefix
	// Pods and Services are what clients reach, whether they do so by these addresses or by others
	// that lead there.
	Served []netip.Prefix
	// Ports are those that pods answer on at the address of their node.
	Ports []uint16
}

// flow is a connection as the kernel tracks it.
type flow struct {
	from, to netip.Addr
	port     uint16
	// answers is who answers: another one than to if the destination was changed on the way.
	answers netip.Addr
	// left is for how much longer the kernel remembers it, in seconds. Every packet makes that
	// more.
	left uint32
}

// client reports whether a flow is one of a client that is served from outside.
func (w *Watcher) client(f flow) bool {
	from := f.from.Unmap()
	if from.IsLoopback() || from.IsLinkLocalUnicast() || from.IsUnspecified() || from.IsMulticast() ||
		in(w.Inside, from) || in(w.Ignore, from) {
		return false
	}
	to, answers := f.to.Unmap(), f.answers.Unmap()
	return to != answers || in(w.Served, to) || slices.Contains(w.Ports, f.port) && in(w.Inside, to)
}

func in(all []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return p.Contains(a) })
}

// active are the clients of those flows that are new since the last look, or had a packet since.
// Those of clients that have gone away count down by as many seconds as have passed, which are more
// than one; every packet starts that again.
func (w *Watcher) active(before, now map[string]flow) []netip.Addr {
	var out []netip.Addr
	for key, f := range now {
		was, known := before[key]
		if w.client(f) && (!known || f.left >= was.left) && !slices.Contains(out, f.from.Unmap()) {
			out = append(out, f.from.Unmap())
		}
	}
	return out
}
