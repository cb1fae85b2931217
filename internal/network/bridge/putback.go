package bridge

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/fieldmanagers"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// ownPatience is for how long a Service may be without an address that is reserved for it.
const ownPatience = 2 * time.Second

// lookAtOwn finds an address that is reserved for a Service to keep itself and that it does not
// have, whoever took it off. Reservations decide, since nobody else can write them.
func (s *view) lookAtOwn(key types.NamespacedName, svc *corev1.Service) *due {
	if !svc.DeletionTimestamp.IsZero() || svc.Spec.Type == corev1.ServiceTypeExternalName || svc.Spec.ClusterIP == corev1.ClusterIPNone {
		return nil
	}
	for _, o := range s.holds.of(key) {
		ip := o.(*networkingv1.IPAddress)
		a, err := netip.ParseAddr(ip.Name)
		form := v1alpha1.OverlapForm(ip.Annotations[v1alpha1.AnnotationOverlap])
		if err != nil || form == "" || slices.Contains(svc.Spec.ClusterIPs, ip.Name) {
			continue
		}
		if have, answers := ownaddress.FormOf(svc, a); !answers || have != form {
			return &due{view: s, service: svc, own: ip}
		}
	}
	return nil
}

// lookAtBridge finds an address that is reserved for a bridge and that it does not have, whoever
// took it off.
func (s *view) lookAtBridge(key types.NamespacedName, b, svc *corev1.Service) *due {
	for _, o := range s.holds.of(key) {
		ip := o.(*networkingv1.IPAddress)
		a, err := netip.ParseAddr(ip.Name)
		if err != nil || a == MemoAddress(svc.UID) || ip.Annotations[v1alpha1.AnnotationOverlap] != "" ||
			slices.Contains(svc.Spec.ClusterIPs, ip.Name) {
			continue
		}
		if _, answers := ownaddress.FormOf(b, a); !answers {
			return &due{view: s, service: svc, bridge: b, own: ip}
		}
	}
	return nil
}

// loser is what has lost an address.
func (d *due) loser() *corev1.Service {
	if d.bridge != nil {
		return d.bridge
	}
	return d.service
}

// formOf is that in which what has lost an address answers at it.
func (d *due) formOf(ip *networkingv1.IPAddress) v1alpha1.OverlapForm {
	switch {
	case d.bridge == nil:
		return v1alpha1.OverlapForm(ip.Annotations[v1alpha1.AnnotationOverlap])
	case FormOf(d.bridge) == v1alpha1.BridgeLoadBalancer:
		return v1alpha1.OverlapLoadBalancer
	}
	return v1alpha1.OverlapExternalIP
}

// putBack asks the API server once more before it writes: a migration that takes addresses off
// says so first, and the patch is to the version that was read after that.
func (s *view) putBack(ctx context.Context, c client.Client, d *due) error {
	svc, ip := &corev1.Service{}, &networkingv1.IPAddress{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(d.loser()), svc); err != nil || svc.UID != d.loser().UID {
		return client.IgnoreNotFound(err)
	}
	err := c.Get(ctx, client.ObjectKeyFromObject(d.own), ip)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("address %s: %w", d.own.Name, err)
	}
	keeps, err := keepsAddress(ctx, c, ip)
	if err != nil || !keeps {
		return err
	}
	a, err := netip.ParseAddr(ip.Name)
	if err != nil {
		return err
	}
	want := svc.DeepCopy()
	ownaddress.Add(want, a, d.formOf(ip))
	if err := ownaddress.Write(ctx, c, svc.DeepCopy(), want); err != nil {
		return err
	}
	if s.follower.Told != nil {
		s.follower.Told(fmt.Sprintf("service %s/%s had lost its address %s, at which it answers until the migration has ended; it was put back. "+
			"It was last written by %s", svc.Namespace, svc.Name, a, fieldmanagers.Last(svc)))
	}
	return nil
}

// keepsAddress reports whether the migration of a reservation has Services answer there: all of its
// ranges until it is finished, and on its way back those at which Services were before.
func keepsAddress(ctx context.Context, c client.Client, ip *networkingv1.IPAddress) (bool, error) {
	m := &v1alpha1.Migration{}
	err := c.Get(ctx, types.NamespacedName{Name: ip.Labels[v1alpha1.LabelMigration]}, m)
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("migration %s: %w", ip.Labels[v1alpha1.LabelMigration], err)
	}
	back := m.Spec.Desired == v1alpha1.DesiredRolledBack ||
		slices.Contains([]v1alpha1.Phase{v1alpha1.PhaseRollingBack, v1alpha1.PhaseRolledBack}, m.Status.Phase)
	switch {
	case m.Status.PointOfNoReturnPassed, m.Spec.ServiceCIDR == nil:
		return false, nil
	case back:
		return within(ip, m.Spec.ServiceCIDR.From), nil
	}
	return within(ip, m.Spec.ServiceCIDR.From) || within(ip, m.Spec.ServiceCIDR.To), nil
}

func within(ip *networkingv1.IPAddress, ranges []string) bool {
	a, err := netip.ParseAddr(ip.Name)
	return err == nil && slices.ContainsFunc(ranges, func(text string) bool {
		p, err := netip.ParsePrefix(text)
		return err == nil && p.Contains(a)
	})
}
