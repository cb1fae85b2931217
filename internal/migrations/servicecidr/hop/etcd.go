package hop

import (
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// rewrites reports whether a Service, as just read, moves by strategy Etcd.
func (h *hopStep) rewrites(svc *corev1.Service) bool {
	if services.IsInTransit(svc, h.Domain) || h.Store == nil {
		return false
	}
	strategy, _, _ := h.Strategies.Choose(svc)
	return strategy == v1alpha1.StrategyOfEtcd
}

// rewrite swaps the address of a Service in etcd, so that watchers see nothing else change. Its
// IPAddress is made before, as API servers make it, so that the repair controller finds nothing
// amiss.
func (a *attempt) rewrite(ctx context.Context) error {
	src, dest := a.ends()
	if err := a.send(ctx, a.patchRewrite(a.svc)); err != nil {
		return err
	}
	if err := a.allocate(ctx, dest); err != nil {
		if IsTaken(err) {
			return a.retarget(ctx, dest)
		}
		return err
	}
	if err := a.Store.Rewrite(ctx, a.svc, stored.Swap{From: src, To: dest}); err != nil {
		if stored.Permanent(err) {
			lasting := context.WithoutCancel(ctx)
			err = errors.Join(err, deallocate(lasting, a.Client, a.svc, dest), a.reserveTarget(lasting))
		}
		return err
	}
	now, err := readService(ctx, a.Client, &a.progress.Entry)
	if err != nil || now == nil {
		return err
	}
	*a.svc = *now
	if !services.IsAt(a.svc, dest) {
		return engine.NotYet("service %s was written at %s, and the API server has it at %s",
			a.progress.Key(), dest, a.svc.Spec.ClusterIP)
	}
	if a.to == engine.Backward {
		if err := a.send(ctx, map[string]any{"metadata": map[string]any{"annotations": a.movedNow()}}); err != nil {
			return err
		}
	}
	return deallocate(ctx, a.Client, a.svc, src)
}

// allocate makes the IPAddress of the Service in the place of the bridge's reservation.
func (a *attempt) allocate(ctx context.Context, dest netip.Addr) error {
	if err := a.releaseTarget(ctx); err != nil {
		return err
	}
	err := a.Client.Create(ctx, allocation(a.svc, dest), client.FieldOwner(v1alpha1.FieldManager))
	if !apierrors.IsAlreadyExists(err) {
		return bridge.NotReadyYet(err)
	}
	have := &networkingv1.IPAddress{}
	if err := a.Client.Get(ctx, types.NamespacedName{Name: dest.String()}, have); err != nil {
		return engine.NotYet("address %s: %w", dest, err)
	}
	if !owns(a.svc, have) {
		return &bridge.TakenError{Address: dest, By: bridge.ParentOf(have)}
	}
	return nil
}

// deallocate removes the IPAddress of an address that a Service is not at, unless others own it.
func deallocate(ctx context.Context, c client.Client, svc *corev1.Service, a netip.Addr) error {
	have := &networkingv1.IPAddress{}
	err := c.Get(ctx, types.NamespacedName{Name: a.String()}, have)
	if err != nil || !owns(svc, have) {
		return client.IgnoreNotFound(err)
	}
	err = c.Delete(ctx, have, client.Preconditions{UID: &have.UID})
	return client.IgnoreNotFound(err)
}

// allocation is an IPAddress as API servers make it for a Service (createIPAddress in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/ipallocator.go).
func allocation(svc *corev1.Service, a netip.Addr) *networkingv1.IPAddress {
	family := corev1.IPv4Protocol
	if a.Is6() {
		family = corev1.IPv6Protocol
	}
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{Name: a.String(), Labels: map[string]string{
			networkingv1.LabelIPAddressFamily: string(family),
			networkingv1.LabelManagedBy:       services.Allocator,
		}},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: svc.Namespace, Name: svc.Name,
		}},
	}
}

func owns(svc *corev1.Service, ip *networkingv1.IPAddress) bool {
	p := ip.Spec.ParentRef
	return p != nil && p.Group == "" && p.Resource == "services" && p.Namespace == svc.Namespace && p.Name == svc.Name
}

// patchRewrite notes on the Service where it goes, some milliseconds early, so that the change of
// address is the last that watchers see. On the way back, the time of arrival is still needed.
func (h *hopStep) patchRewrite(svc *corev1.Service) map[string]any {
	notes := map[string]any{
		v1alpha1.LabelMigration:     h.Migration,
		v1alpha1.AnnotationOldIP:    h.progress.Old.String(),
		v1alpha1.AnnotationTargetIP: h.progress.New.String(),
	}
	if h.to == engine.Forward {
		notes[v1alpha1.AnnotationMovedAt] = h.movedNow()[v1alpha1.AnnotationMovedAt]
	} else { // pods started since then may carry the address that is left now
		notes[v1alpha1.AnnotationAwaySince] = svc.Annotations[v1alpha1.AnnotationMovedAt]
	}
	return map[string]any{"metadata": map[string]any{"resourceVersion": svc.ResourceVersion, "annotations": notes}}
}

func (h *hopStep) movedNow() map[string]any {
	return map[string]any{v1alpha1.AnnotationMovedAt: h.Now().UTC().Format(time.RFC3339Nano)}
}

func (h *hopStep) changesOfRewrite() []engine.Change {
	svc := h.progress.Service
	src, dest := h.ends()
	address := func(verb string, a netip.Addr, note string) engine.Change {
		return engine.Change{Verb: verb, Object: "IPAddress " + a.String() + note}
	}
	memo := address("create", bridge.MemoAddress(svc.UID), " (what is noted of the Service)")
	own, kept := address("create", dest, ""), address("create", src, "")
	own.Body, kept.Body = allocation(svc, dest), h.hold(src).Build()
	arrived := services.AddressesOnArrival(dest, &svc.Spec)
	changes := []engine.Change{
		memo, h.patched(timeless(h.patchRewrite(svc))), address("delete", dest, " (held)"), own,
		{Verb: "put", Object: "etcd: Service " + h.progress.Key().String(), Body: map[string]any{"spec": map[string]any{
			"clusterIP": arrived[0], "clusterIPs": arrived,
		}}},
	}
	if h.to == engine.Backward {
		changes = append(changes, h.patched(map[string]any{"metadata": map[string]any{
			"annotations": map[string]any{v1alpha1.AnnotationMovedAt: "<now>"},
		}}))
	}
	return append(changes, address("delete", src, ""), kept)
}
