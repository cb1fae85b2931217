package tunneladdr

import (
	"net/netip"
	"slices"
	"testing"
	"time"
)

func kernel(gateways, hardware, machines map[string]string, addresses ...string) *Kernel {
	s := &Kernel{Gateways: map[netip.Prefix]netip.Addr{}, Hardware: map[netip.Addr]string{}, Machines: map[string]netip.Addr{}}
	for block, gateway := range gateways {
		s.Gateways[netip.MustParsePrefix(block)] = netip.MustParseAddr(gateway)
	}
	for gateway, mac := range hardware {
		s.Hardware[netip.MustParseAddr(gateway)] = mac
	}
	for mac, machine := range machines {
		s.Machines[mac] = netip.MustParseAddr(machine)
	}
	for _, a := range addresses {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	return s
}

// TestRoutesFollow goes through what a change of another node's tunnel looks like: the neighbour
// goes, the route goes and comes by another gateway. None of it changes the route keeper's route. A
// block that becomes another node's does, at once; one that is gone for long is given up.
func TestRoutesFollow(t *testing.T) {
	now := time.Now()
	block := netip.MustParsePrefix("10.244.1.0/26")
	to := func(machine, mac string) BlockRoute { return BlockRoute{block, netip.MustParseAddr(machine), mac} }
	machines := map[string]string{"66:01": "172.30.0.1", "66:02": "172.30.0.2"}
	f := &followed{}
	for _, step := range []struct {
		what  string
		seen  *Kernel
		after time.Duration
		set   []BlockRoute
		gone  []netip.Prefix
		calm  bool
	}{
		{
			"first", kernel(map[string]string{"10.244.1.0/26": "10.244.1.0"}, map[string]string{"10.244.1.0": "66:01"}, machines),
			0,
			[]BlockRoute{to("172.30.0.1", "66:01")},
			nil, true,
		},
		{"no neighbour", kernel(map[string]string{"10.244.1.0/26": "10.244.1.0"}, nil, machines), 0, nil, nil, false},
		{"no route", kernel(nil, map[string]string{"10.245.1.0": "66:01"}, machines), time.Second, nil, nil, false},
		{
			"another gateway", kernel(map[string]string{"10.244.1.0/26": "10.245.1.0"}, map[string]string{"10.245.1.0": "66:01"}, machines),
			time.Second, nil, nil, true,
		},
		{
			"another node", kernel(map[string]string{"10.244.1.0/26": "10.245.2.0"}, map[string]string{"10.245.2.0": "66:02"}, machines),
			0,
			[]BlockRoute{to("172.30.0.2", "66:02")},
			nil, true,
		},
		{"none", kernel(nil, nil, machines), 0, nil, nil, false},
		{"none for long", kernel(nil, nil, machines), patience, nil, []netip.Prefix{block}, true},
	} {
		now = now.Add(step.after)
		set, gone := f.follow(step.seen.Routes(), now)
		if !slices.Equal(set, step.set) || !slices.Equal(gone, step.gone) {
			t.Errorf("%s: sets %v and gives up %v, not %v and %v", step.what, set, gone, step.set, step.gone)
		}
		if got := f.converged(step.seen, netip.Addr{}); got != step.calm {
			t.Errorf("%s: converged %v", step.what, got)
		}
	}
}

// TestKeeperWaitsForFelix: a route keeper ends when the interface has the new address alone.
func TestKeeperWaitsForFelix(t *testing.T) {
	fresh := netip.MustParseAddr("10.245.1.0")
	for _, tt := range []struct {
		addresses []string
		want      bool
	}{
		{[]string{"10.244.1.0"}, false}, {[]string{"10.244.1.0", "10.245.1.0"}, false}, {nil, false}, {[]string{"10.245.1.0"}, true},
	} {
		f := &followed{}
		if got := f.converged(kernel(nil, nil, nil, tt.addresses...), fresh); got != tt.want {
			t.Errorf("%v: %v", tt.addresses, got)
		}
	}
}
