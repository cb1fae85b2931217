package ranges

import (
	"net/netip"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// The default ServiceCIDR of both families goes as a whole, since no range can be taken out of it.
// The range that stays is kept by one of its own meanwhile (docs/design/retire.md).

func (r *RangePlan) apart(name string, was []netip.Prefix) []ServiceRange {
	other, both := otherFamilyRange(r.Inventory, was)
	if !both {
		return nil
	}
	o := r.own(r.Inventory.Spec.Name+KeepOf+name, other, v1alpha1.RoleKeep)
	o.was = was
	return []ServiceRange{o}
}

// aparts are the ServiceCIDRs that keep ranges of the other family meanwhile.
func (r *RangePlan) aparts() []ServiceRange {
	var all []ServiceRange
	for _, c := range ToRetire(r.Inventory) {
		all = append(all, r.apart(c.Name, services.CIDRsOf(c))...)
	}
	return all
}

func (r *RangePlan) isApart(k ServiceRange) bool {
	return keepsOtherFamily(r.Inventory, rangeNamed(r.Inventory, k.Name))
}

func (r *RangePlan) keptApart() []ServiceRange {
	return slices.DeleteFunc(r.keeping(), func(k ServiceRange) bool { return !r.isApart(k) })
}

func (r *RangePlan) leftApart() []ServiceRange {
	all := r.keptApart()
	for _, back := range r.restoredApart() {
		if !slices.ContainsFunc(all, func(k ServiceRange) bool { return k.Name == back.Name }) {
			all = append(all, back)
		}
	}
	return all
}

// restoredApart keeps the other family's range while the default of the new flag goes.
func (r *RangePlan) restoredApart() []ServiceRange {
	if was, _, restores := restoredDefaults(r.Inventory); restores {
		return r.apart(DefaultRange, was)
	}
	return nil
}
