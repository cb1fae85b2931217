package podmove

import (
	"net/netip"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/ranges"
)

func checkRights(in Input) []findings.Result { return migration.Denied(in.Live.Access) }

func checkNodesReady(in Input) []findings.Result { return migration.NotReady(in.Inventory.Nodes) }

func checkOverlaps(in Input) []findings.Result {
	var out []findings.Result
	against := func(object, what string, p netip.Prefix) {
		for _, to := range in.Inventory.Spec.To {
			if to.Overlaps(p) {
				out = append(out, findings.Failed(object, "target %s overlaps %s %s", to, what, p))
			}
		}
	}
	for _, t := range in.Taken {
		against(t.Object, t.What, t.Range)
	}
	for i := range in.ServiceCIDRs {
		c := &in.ServiceCIDRs[i]
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				against("ServiceCIDR "+c.Name, "the Service range", p)
			}
		}
	}
	for i := range in.Inventory.Nodes {
		n := &in.Inventory.Nodes[i]
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				against("Node "+n.Name, "the address of node "+n.Name+",", netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	if in.Live.Inspection != nil {
		for _, r := range in.Live.Inspection.ControlPlane.Reached() {
			against(r.Object, r.What+" at", netip.PrefixFrom(r.Address, r.Address.BitLen()))
		}
	}
	for _, p := range in.Inventory.Spec.Networks {
		against("", "network", p)
	}
	return out
}

func checkReserved(in Input) []findings.Result {
	var out []findings.Result
	for _, text := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"} {
		for _, to := range in.Inventory.Spec.To {
			if to.Overlaps(netip.MustParsePrefix(text)) {
				out = append(out, findings.Failed("", "target %s overlaps %s", to, text))
			}
		}
	}
	return out
}

func checkShared(in Input) []findings.Result {
	var out []findings.Result
	for _, to := range in.Inventory.Spec.To {
		if to.Overlaps(ranges.SharedSpace()) {
			out = append(out, findings.Failed("", "target %s overlaps %s", to, ranges.SharedSpace()))
		}
	}
	return out
}
