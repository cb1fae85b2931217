package ranges

import (
	"net/netip"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// The default ServiceCIDR of a cluster of both families has a range of each, since API servers make
// it from a flag that names both. No range can be taken out of a ServiceCIDR: the whole goes, and
// the range in which all Services stay is kept by one of its own until the API servers have made
// the next. See docs/design/retire.md.

// apart keeps the range of the other family which is in a ServiceCIDR of some ranges that goes;
// none, if there is no such range.
func (r *Plan) apart(name string, was []netip.Prefix) []Range {
	other, both := otherFamilyRange(r.Inventory, was)
	if !both {
		return nil
	}
	o := r.own(r.Inventory.Spec.Name+KeepOf+name, other, v1alpha1.RoleKeep)
	o.was = was
	return []Range{o}
}

// aparts are the ServiceCIDRs that keep ranges of the other family while those go that they were
// in.
func (r *Plan) aparts() []Range {
	var all []Range
	for _, c := range Retiring(r.Inventory) {
		all = append(all, r.apart(c.Name, services.CIDRsOf(c))...)
	}
	return all
}

// isApart reports whether a range that is kept is one of the other family.
func (r *Plan) isApart(k Range) bool {
	return keepsOtherFamily(r.Inventory, rangeNamed(r.Inventory, k.Name))
}

// keptApart are those of them that are there.
func (r *Plan) keptApart() []Range {
	return slices.DeleteFunc(r.keeping(), func(k Range) bool { return !r.isApart(k) })
}

// leftApart are those that are there at the end of a rollback.
func (r *Plan) leftApart() []Range {
	all := r.keptApart()
	for _, back := range r.restoredApart() {
		if !slices.ContainsFunc(all, func(k Range) bool { return k.Name == back.Name }) {
			all = append(all, back)
		}
	}
	return all
}

// restoredApart keeps the range of the other family while the default ServiceCIDR goes that API
// servers made from their new flag.
func (r *Plan) restoredApart() []Range {
	if was, _, restores := restoredDefaults(r.Inventory); restores {
		return r.apart(DefaultRange, was)
	}
	return nil
}
