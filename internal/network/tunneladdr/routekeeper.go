package tunneladdr

import (
	"net/netip"
	"slices"
	"time"
)

// Temporary VXLAN routes carry a node's packets to other nodes' pods while Calico's tunnels change
// addresses. Felix removes routes before it adds them again (felix/routetable), and their
// neighbours before that (felix/vxlanfdb); and the kernel drops all routes and neighbours of an
// interface without addresses (fib_inetaddr_event in net/ipv4/fib_frontend.c). So the interface
// gets its new address before Felix does it, and routes in a table of their own lead to the same
// machines by the machines' addresses, which do not change.

// Device is Calico's VXLAN interface.
const Device = "vxlan.calico"

// The routes' table is looked up before the main one, and after others'.
const (
	routeTable   = 7090
	rulePriority = 32700
)

// BlockRoute leads to a block of another node's: to its machine, whose tunnel has a hardware
// address.
type BlockRoute struct {
	Block   netip.Prefix
	Machine netip.Addr
	MAC     string
}

// Kernel is what a node's kernel has for Calico's tunnels.
type Kernel struct {
	// Gateways are next hops of Felix' routes, Hardware their MAC addresses, Machines where those
	// are.
	Gateways map[netip.Prefix]netip.Addr
	Hardware map[netip.Addr]string
	Machines map[string]netip.Addr
	// Addresses are those of the interface.
	Addresses []netip.Addr
}

func (s *Kernel) Routes() map[netip.Prefix]BlockRoute {
	all := map[netip.Prefix]BlockRoute{}
	for block, gateway := range s.Gateways {
		mac, machine := s.Hardware[gateway], netip.Addr{}
		if mac != "" {
			machine = s.Machines[mac]
		}
		if machine.IsValid() {
			all[block] = BlockRoute{block, machine, mac}
		}
	}
	return all
}

// patience is how long Felix may have no route to a block until the temporary one goes too.
const patience = 3 * time.Second

type followed struct {
	have map[netip.Prefix]BlockRoute
	// missing is since when Felix has no such route.
	missing map[netip.Prefix]time.Time
}

// follow returns the routes to set and the blocks to give up. A route that leads elsewhere is
// replaced at once: its block has become another node's.
func (f *followed) follow(seen map[netip.Prefix]BlockRoute, now time.Time) (set []BlockRoute, gone []netip.Prefix) {
	if f.have == nil {
		f.have, f.missing = map[netip.Prefix]BlockRoute{}, map[netip.Prefix]time.Time{}
	}
	for block, r := range seen {
		delete(f.missing, block)
		if f.have[block] != r {
			f.have[block] = r
			set = append(set, r)
		}
	}
	for block := range f.have {
		if _, yes := seen[block]; yes {
			continue
		}
		since, known := f.missing[block]
		if !known {
			f.missing[block] = now
			continue
		}
		if now.Sub(since) >= patience {
			delete(f.have, block)
			delete(f.missing, block)
			gone = append(gone, block)
		}
	}
	return set, gone
}

// converged reports whether Felix has set every route and the interface has the new address alone.
func (f *followed) converged(s *Kernel, fresh netip.Addr) bool {
	if fresh.IsValid() && !slices.Equal(s.Addresses, []netip.Addr{fresh}) {
		return false
	}
	return len(f.missing) == 0
}
