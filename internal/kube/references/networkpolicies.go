package references

import (
	"encoding/json"
	"fmt"
	"net/netip"

	"go4.org/netipx"
	networkingv1 "k8s.io/api/networking/v1"
)

func (w *walk) networkPolicy(o *networkingv1.NetworkPolicy) {
	w.object("NetworkPolicy", o)
	var order []string
	together := map[string][]block{}
	add := func(ports []networkingv1.NetworkPolicyPort, direction, field string, b *networkingv1.IPBlock) {
		if b == nil {
			return
		}
		key := direction + portKey(ports)
		if together[key] == nil {
			order = append(order, key)
		}
		together[key] = append(together[key], block{field, b})
	}
	for i := range o.Spec.Ingress {
		for j, peer := range o.Spec.Ingress[i].From {
			add(o.Spec.Ingress[i].Ports, "ingress", fmt.Sprintf("spec.ingress[%d].from[%d].ipBlock", i, j), peer.IPBlock)
		}
	}
	for i := range o.Spec.Egress {
		for j, peer := range o.Spec.Egress[i].To {
			add(o.Spec.Egress[i].Ports, "egress", fmt.Sprintf("spec.egress[%d].to[%d].ipBlock", i, j), peer.IPBlock)
		}
	}
	for _, key := range order {
		w.ipBlocks(together[key])
	}
}

type block struct {
	field string
	*networkingv1.IPBlock
}

// portKey is the same for rules about the same ports, whose peers count together.
func portKey(ports []networkingv1.NetworkPolicyPort) string {
	body, err := json.Marshal(ports)
	if err != nil {
		panic(err) // they were read from JSON
	}
	return string(body)
}

func (b block) allowed() (*netipx.IPSet, error) {
	var set netipx.IPSetBuilder
	p, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, err
	}
	set.AddPrefix(p)
	for _, text := range b.Except {
		if e, err := netip.ParsePrefix(text); err == nil {
			set.RemovePrefix(e)
		}
	}
	return set.IPSet()
}

// ipBlocks notes blocks of rules that treat the old ranges and the new ones differently.
func (w *walk) ipBlocks(all []block) {
	var together netipx.IPSetBuilder
	sets := map[int]*netipx.IPSet{}
	for i, b := range all {
		if set, err := b.allowed(); err == nil {
			sets[i] = set
			together.AddSet(set)
		}
	}
	union, err := together.IPSet()
	w.covered = err == nil && w.even(union)
	defer func() { w.covered = false }()
	for i, b := range all {
		if sets[i] == nil || w.even(sets[i]) {
			continue
		}
		w.add(b.field, b.CIDR)
		for n, text := range b.Except {
			if e, err := netip.ParsePrefix(text); err == nil && (w.scanner.fromSet.OverlapsPrefix(e) || w.scanner.toSet.OverlapsPrefix(e)) {
				w.add(fmt.Sprintf("%s.except[%d]", b.field, n), text)
			}
		}
	}
}

// even reports whether a set treats old and new ranges alike, in each family.
func (w *walk) even(allowed *netipx.IPSet) bool {
	for _, family := range []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")} {
		from, to := ofFamily(family, w.scanner.from), ofFamily(family, w.scanner.to)
		before, whole1 := share(allowed, from)
		after, whole2 := share(allowed, to)
		if !whole1 || !whole2 || before != after {
			return false
		}
	}
	return true
}

// share says whether ranges are in a set, and whether that is the same for all of their addresses.
func share(allowed *netipx.IPSet, prefixes []netip.Prefix) (in, whole bool) {
	some, all := false, true
	for _, p := range prefixes {
		some = some || allowed.OverlapsPrefix(p)
		all = all && allowed.ContainsPrefix(p)
	}
	return some, !some || all
}
