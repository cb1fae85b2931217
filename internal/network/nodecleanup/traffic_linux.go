package nodecleanup

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/replumb/replumb/internal/engine/lists"
)

// lookEvery is shorter than any entry lasts after its last packet: 10 s for closed ones
// (net.netfilter.nf_conntrack_tcp_timeout_close), 30 s for UDP.
const lookEvery = 2 * time.Second

// Watch reads connection tracking for the window, and reports active clients from outside.
func (w Watcher) Watch(ctx context.Context) (*TracesReport, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Window)
	defer cancel()
	before, err := flows()
	if err != nil {
		return nil, err
	}
	var clients []netip.Addr
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for over := false; !over; {
		select {
		case <-ctx.Done():
			over = true
		case <-tick.C:
		}
		now, err := flows()
		if err != nil {
			return nil, err
		}
		clients = append(clients, w.active(before, now)...)
		before = now
	}
	slices.SortFunc(clients, netip.Addr.Compare)
	return &TracesReport{Clients: lists.Strings(slices.Compact(clients))}, nil
}

func flows() (map[string]flow, error) {
	out := map[string]flow{}
	for _, family := range []netlink.InetFamily{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		all, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		if err != nil {
			return nil, fmt.Errorf("reading connection tracking: %w", err)
		}
		for _, c := range all {
			f := flow{
				from:    addr(c.Forward.SrcIP),
				to:      addr(c.Forward.DstIP),
				port:    c.Forward.DstPort,
				answers: addr(c.Reverse.SrcIP),
				left:    c.TimeOut,
			}
			key := fmt.Sprint(c.Forward.Protocol, f.from, c.Forward.SrcPort, f.to, f.port, c.Zone)
			out[key] = f
		}
	}
	return out, nil
}

func addr(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
