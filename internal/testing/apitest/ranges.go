package apitest

import (
	"context"
	"net/netip"
	"slices"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/replumb/replumb/internal/network/cidr"
)

// rangeFinalizer keeps a ServiceCIDR that was deleted until no address needs it
// (ServiceCIDRProtectionFinalizer in k8s.io/kubernetes
// pkg/controller/servicecidrs/servicecidrs_controller.go).
const rangeFinalizer = "networking.k8s.io/service-cidr-finalizer"

// ranges plays the controller of ServiceCIDRs, as sync and canDeleteCIDR in k8s.io/kubernetes
// pkg/controller/servicecidrs/servicecidrs_controller.go have it, without the ten seconds of grace.
// It returns when it has to look again.
func (s *Server) ranges(ctx context.Context) time.Duration {
	all, addresses := &networkingv1.ServiceCIDRList{}, &networkingv1.IPAddressList{}
	if s.List(ctx, all) != nil {
		return soon
	}
	again := later
	if slices.ContainsFunc(all.Items, func(r networkingv1.ServiceCIDR) bool { return !r.DeletionTimestamp.IsZero() }) {
		again = soon
		if s.List(ctx, addresses, client.MatchingLabels{networkingv1.LabelManagedBy: "ipallocator.k8s.io"}) != nil {
			return again
		}
	}
	hasDefault := false
	for i := range all.Items {
		r := &all.Items[i]
		gone := tend(ctx, s, r, all.Items, addresses.Items)
		hasDefault = hasDefault || (r.Name == DefaultName && !gone)
	}
	if !hasDefault {
		s.restoreDefault(ctx, s)
		return soon
	}
	return again
}

// tend brings one ServiceCIDR on: guards it with the finalizer, lets it go or says what it waits
// for. It reports whether the range is gone now.
func tend(
	ctx context.Context, c client.Client, r *networkingv1.ServiceCIDR, all []networkingv1.ServiceCIDR, addresses []networkingv1.IPAddress,
) bool {
	cond := metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "StandIn",
		Message: "Kubernetes Service CIDR is ready",
	}
	switch {
	case r.DeletionTimestamp.IsZero():
		if controllerutil.AddFinalizer(r, rangeFinalizer) && c.Update(ctx, r) != nil {
			return false
		}
	case free(r, all, addresses):
		return controllerutil.RemoveFinalizer(r, rangeFinalizer) && c.Update(ctx, r) == nil
	default:
		cond.Status, cond.Reason = metav1.ConditionFalse, networkingv1.ServiceCIDRReasonTerminating
		cond.Message = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR"
	}
	if meta.SetStatusCondition(&r.Status.Conditions, cond) {
		_ = c.Status().Update(ctx, r)
	}
	return false
}

// DefaultName is the name of the ServiceCIDR that API servers make from --service-cluster-ip-range
// (DefaultServiceCIDRName in k8s.io/kubernetes pkg/controlplane/controller/defaultservicecidr).
const DefaultName = "kubernetes"

// SetDefault plays an operator who gives every API server another --service-cluster-ip-range: when
// there is no default ServiceCIDR it is made with this range, and at once. The API server itself
// looks every ten seconds, and still has the range it was started with; should it be first, it is
// corrected.
func (s *Server) SetDefault(serviceRange string) { s.defaultRange.Store(&serviceRange) }

func (s *Server) restoreDefault(ctx context.Context, c client.Client) {
	want := s.defaultRange.Load()
	if want == nil {
		return
	}
	build := func() *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: DefaultName}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{*want}},
		}
	}
	for apierrors.IsAlreadyExists(c.Create(ctx, build())) {
		have := build()
		if c.Get(ctx, client.ObjectKeyFromObject(have), have) != nil || slices.Equal(have.Spec.CIDRs, []string{*want}) {
			return
		}
		_ = c.Delete(ctx, have, client.Preconditions{UID: &have.UID})
		if c.Get(ctx, client.ObjectKeyFromObject(have), have) == nil && controllerutil.RemoveFinalizer(have, rangeFinalizer) {
			_ = c.Update(ctx, have)
		}
	}
}

// free reports whether a ServiceCIDR may go: another contains it, or no address has it alone.
func free(r *networkingv1.ServiceCIDR, all []networkingv1.ServiceCIDR, addresses []networkingv1.IPAddress) bool {
	orphaned := func(within func(netip.Prefix) bool) bool {
		var names []string
		for i := range all {
			if slices.ContainsFunc(prefixes(&all[i]), within) {
				names = append(names, all[i].Name)
			}
		}
		return len(names) == 0 || (len(names) == 1 && names[0] == r.Name)
	}
	parent := true
	for _, p := range prefixes(r) {
		parent = parent && !orphaned(func(o netip.Prefix) bool { return o.Bits() <= p.Bits() && o.Contains(p.Addr()) })
	}
	if parent {
		return true
	}
	return !slices.ContainsFunc(addresses, func(ip networkingv1.IPAddress) bool {
		a, err := netip.ParseAddr(ip.Name)
		has := func(p netip.Prefix) bool { return usable(p, a) }
		return err == nil && slices.ContainsFunc(prefixes(r), has) && orphaned(has)
	})
}

// usable leaves out the first and last address of a range (PrefixContainsIP in k8s.io/kubernetes
// pkg/api/servicecidr/servicecidr.go).
func usable(p netip.Prefix, a netip.Addr) bool {
	first, last := cidr.Bounds(p)
	return !a.Less(first) && !last.Less(a)
}

func prefixes(r *networkingv1.ServiceCIDR) []netip.Prefix {
	var all []netip.Prefix
	for _, text := range r.Spec.CIDRs {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}
