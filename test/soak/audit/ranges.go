package audit

import (
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/test/soak/model"
)

const (
	// defaultRange is the ServiceCIDR that API servers make of their flag.
	defaultRange = "kubernetes"
	// allocator manages the IPAddresses of Services.
	allocator = "ipallocator.k8s.io"
)

// auditRanges compares the Service ranges with where Services are: the default one is the one that Services are in, and any other has
// a Service that could not be without it.
func (r *report) auditRanges() {
	found := false
	for i := range r.ServiceCIDRs {
		c := &r.ServiceCIDRs[i]
		object := "servicecidr " + c.Name
		if c.DeletionTimestamp != nil {
			r.add(object, "is being deleted")
		}
		switch {
		case c.Name == defaultRange:
			found = true
			if !slices.Equal(c.Spec.CIDRs, []string{r.now().String()}) {
				r.add(object, "is %q instead of %s", c.Spec.CIDRs, r.now())
			}
		case !r.ours(c) && !r.Kept[c.Name] && !r.needed(c):
			r.add(object, "is left over: no Service needs %q", c.Spec.CIDRs)
		}
	}
	if !found {
		r.add("servicecidr "+defaultRange, "is lost")
	}
}

// Keep takes up the ranges that a rollback has left, which an audit has found to be needed.
func (w *Want) Keep(have Snapshot) {
	if w.Kept == nil {
		w.Kept = map[string]bool{}
	}
	for i := range have.ServiceCIDRs {
		if name := have.ServiceCIDRs[i].Name; name != defaultRange {
			w.Kept[name] = true
		}
	}
}

// needed reports whether a Service is in the range and not in the default one.
func (r *report) needed(c *networkingv1.ServiceCIDR) bool {
	for _, svc := range r.Services {
		address, err := netip.ParseAddr(svc.Spec.ClusterIP)
		if err == nil && covers(c, address) && !r.now().Contains(address) {
			return true
		}
	}
	return false
}

func covers(c *networkingv1.ServiceCIDR, address netip.Addr) bool {
	return slices.ContainsFunc(c.Spec.CIDRs, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(address)
	})
}

// auditAddresses holds Services and IPAddresses against each other: each address has one Service, each Service one address, which is
// in a range.
func (r *report) auditAddresses() {
	owners := map[string]model.Key{}
	for i := range r.Services {
		svc := &r.Services[i]
		address, err := netip.ParseAddr(svc.Spec.ClusterIP)
		if err != nil {
			continue
		}
		owners[svc.Spec.ClusterIP] = keyOf(svc)
		if !slices.ContainsFunc(r.ServiceCIDRs, func(c networkingv1.ServiceCIDR) bool { return covers(&c, address) }) {
			r.add(name("service", keyOf(svc)), "is at %s, which is in no Service range", address)
		}
	}
	for i := range r.Addresses {
		a := &r.Addresses[i]
		object := "ipaddress " + a.Name
		if r.Stage == Overlap && a.Labels[v1alpha1.LabelRole] == v1alpha1.RoleHold {
			continue
		}
		if by := a.Labels[networkingv1.LabelManagedBy]; by != allocator {
			r.add(object, "is managed by %q", by)
		}
		owner, there := owners[a.Name]
		delete(owners, a.Name)
		parent := model.Key{}
		if p := a.Spec.ParentRef; p != nil {
			parent = model.Key{Namespace: p.Namespace, Name: p.Name}
		}
		switch {
		case !there:
			r.add(object, "is left over of %s", parent)
		case parent != owner:
			r.add(object, "is of %s, and service %s has it", parent, owner)
		}
	}
	for address, key := range owners {
		r.add(name("service", key), "is at %s, for which there is no ipaddress", address)
	}
}
