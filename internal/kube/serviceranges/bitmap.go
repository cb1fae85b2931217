package serviceranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// bitmap emulates ServiceCIDRs and IPAddresses where the API server serves none
// (docs/design/versions.md): its flag is the only ServiceCIDR, and the address of a Service is a
// read-only IPAddress.
//
// A Service in replumb's namespace stands for a reserved address and has it as its clusterIP. An
// address outside the range cannot be taken yet, so it is in an annotation of an ExternalName
// Service until Update takes it.
type bitmap struct {
	client.WithWatch
	ask func(ctx context.Context, c client.WithWatch) ([]netip.Prefix, error)
}

// FlagRange is the name of the default ServiceCIDR.
const FlagRange = "kubernetes"

// OneRangeError refuses to add, change or remove a range.
type OneRangeError struct{ Verb, Name string }

func (e *OneRangeError) Error() string {
	return fmt.Sprintf(
		"servicecidr %s cannot be %s: this cluster has no ServiceCIDRs, and its one range is the flag --service-cluster-ip-range "+
			"of its API servers",
		e.Name,
		e.Verb,
	)
}

func (*OneRangeError) Advice() string {
	return "change the flag, or upgrade the cluster to Kubernetes 1.33 or later"
}

func (b bitmap) ranges(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	ranges, err := b.ask(ctx, b.WithWatch)
	if err != nil {
		return nil, err
	}
	c := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: FlagRange}}
	for _, r := range ranges {
		c.Spec.CIDRs = append(c.Spec.CIDRs, r.String())
	}
	meta.SetStatusCondition(&c.Status.Conditions, metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Reason: "Flag",
		Message: "it is --service-cluster-ip-range of the API server",
	})
	return c, nil
}

func (b bitmap) get(ctx context.Context, name string, into client.Object) error {
	switch o := into.(type) {
	case *networkingv1.ServiceCIDR:
		have, err := b.ranges(ctx)
		if err != nil {
			return err
		}
		if name != have.Name {
			return notFound("servicecidrs", name)
		}
		have.DeepCopyInto(o)
		return nil
	case *networkingv1.IPAddress:
		have, err := b.address(ctx, name)
		if err == nil {
			have.DeepCopyInto(o)
		}
		return err
	}
	return fmt.Errorf("getting %T: not known", into)
}

func (b bitmap) address(ctx context.Context, name string) (*networkingv1.IPAddress, error) {
	a, err := netip.ParseAddr(name)
	if err != nil {
		return nil, notFound("ipaddresses", name)
	}
	hold, err := b.hold(ctx, a)
	if err != nil || hold != nil {
		return reservedBy(hold), err
	}
	owner, err := b.owner(ctx, a)
	switch {
	case err != nil:
		return nil, err
	case owner == nil:
		return nil, notFound("ipaddresses", name)
	}
	return givenTo(owner, a), nil
}

// hold is the Service that stands for a reserved address, or nil. It is listed, since some users
// have no right to get it.
func (b bitmap) hold(ctx context.Context, a netip.Addr) (*corev1.Service, error) {
	return b.findService(
		ctx, isHold, client.InNamespace(v1alpha1.SystemNamespace), client.MatchingFields{metav1.ObjectNameField: holdName(a)},
	)
}

// owner is the Service that has an address, or nil. Its field is selectable
// (ServiceSelectableFields in k8s.io/kubernetes pkg/registry/core/service/strategy.go).
func (b bitmap) owner(ctx context.Context, a netip.Addr) (*corev1.Service, error) {
	isOwner := func(s *corev1.Service) bool { return !isHold(s) }
	return b.findService(ctx, isOwner, client.MatchingFields{"spec.clusterIP": a.String()})
}

func (b bitmap) findService(
	ctx context.Context, match func(*corev1.Service) bool, opts ...client.ListOption,
) (*corev1.Service, error) {
	all := &corev1.ServiceList{}
	if err := b.List(ctx, all, opts...); err != nil {
		return nil, err
	}
	for i := range all.Items {
		if match(&all.Items[i]) {
			return &all.Items[i], nil
		}
	}
	return nil, nil
}

func (b bitmap) list(ctx context.Context, into client.ObjectList, opts ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	selector := o.LabelSelector
	if selector == nil {
		selector = labels.Everything()
	}
	if all, is := into.(*networkingv1.ServiceCIDRList); is {
		have, err := b.ranges(ctx)
		if err == nil && selector.Matches(labels.Set(have.Labels)) {
			all.Items = []networkingv1.ServiceCIDR{*have}
		}
		return err
	}
	services := &corev1.ServiceList{}
	if !selectsAllocated(selector) {
		o.Namespace = v1alpha1.SystemNamespace
	} else {
		o.LabelSelector = nil
	}
	if err := b.List(ctx, services, o); err != nil {
		return err
	}
	all := into.(*networkingv1.IPAddressList)
	all.ListMeta, all.Items = services.ListMeta, nil
	all.RemainingItemCount = nil
	for i := range services.Items {
		for _, ip := range addressesOf(&services.Items[i]) {
			if selector.Matches(labels.Set(ip.Labels)) {
				all.Items = append(all.Items, *ip)
			}
		}
	}
	return nil
}

// selectsAllocated reports whether a selector matches addresses of Services, beside reserved ones.
func selectsAllocated(selector labels.Selector) bool {
	return slices.ContainsFunc([]string{"IPv4", "IPv6"}, func(family string) bool {
		return selector.Matches(labels.Set(givenLabels(family)))
	})
}

func (b bitmap) create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	ip, a, err := reservable(o, "created")
	if err != nil {
		return err
	}
	var svc *corev1.Service
	if !discardOnly.Contains(a) {
		svc = standIn(ip, a)
		if err = b.Create(ctx, svc, opts...); !outOfRange(err) {
			return finishReservation(ip, svc, a, err)
		}
		owner, err := b.owner(ctx, a)
		if err != nil {
			return err
		}
		if owner != nil {
			return alreadyExists(a)
		}
	}
	svc = withoutClusterIP(standIn(ip, a))
	return finishReservation(ip, svc, a, b.Create(ctx, svc, opts...))
}

// finishReservation copies a written Service into its IPAddress, or translates the error.
func finishReservation(ip *networkingv1.IPAddress, svc *corev1.Service, a netip.Addr, err error) error {
	switch {
	case err == nil:
		reservedBy(svc).DeepCopyInto(ip)
		return nil
	case apierrors.IsAlreadyExists(err), allocated(err):
		return alreadyExists(a)
	case otherFlag(err):
		return engine.NotYet("address %s: %w", a, err)
	}
	return err
}

// update takes an address that was out of range when it was reserved, and changes nothing else.
func (b bitmap) update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	ip, a, err := reservable(o, "changed")
	if err != nil {
		return err
	}
	svc, err := b.hold(ctx, a)
	switch {
	case err != nil:
		return err
	case svc == nil || svc.UID != ip.UID:
		return notFound("ipaddresses", ip.Name)
	case svc.Spec.Type != corev1.ServiceTypeExternalName:
		reservedBy(svc).DeepCopyInto(ip)
		return nil
	}
	given, was := (&client.UpdateOptions{}).ApplyOptions(opts), svc.DeepCopy()
	svc.Spec = standIn(ip, a).Spec
	patch := client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{})
	err = b.Patch(ctx, svc, patch, &client.PatchOptions{DryRun: given.DryRun, FieldManager: given.FieldManager})
	if outOfRange(err) {
		return nil
	}
	return finishReservation(ip, svc, a, err)
}

func (b bitmap) remove(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	ip, is := o.(*networkingv1.IPAddress)
	if !is {
		return &OneRangeError{Verb: "deleted", Name: o.GetName()}
	}
	a, err := netip.ParseAddr(ip.Name)
	if err != nil {
		return notFound("ipaddresses", ip.Name)
	}
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: holdName(a)}}
	err = b.Delete(ctx, svc, opts...)
	if apierrors.IsNotFound(err) {
		return notFound("ipaddresses", ip.Name)
	}
	return err
}

func (b bitmap) removeAll(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	if _, is := o.(*networkingv1.IPAddress); !is {
		return &OneRangeError{Verb: "deleted", Name: "…"}
	}
	all, given := &networkingv1.IPAddressList{}, (&client.DeleteAllOfOptions{}).ApplyOptions(opts)
	if err := b.list(ctx, all, &given.ListOptions); err != nil {
		return err
	}
	for i := range all.Items {
		if err := b.remove(ctx, &all.Items[i], &given.DeleteOptions); client.IgnoreNotFound(err) != nil {
			return err
		}
	}
	return nil
}

// watchReserved refuses selectors that match addresses of Services too.
func (b bitmap) watchReserved(ctx context.Context, list client.ObjectList, opts ...client.ListOption) (watch.Interface, error) {
	o := (&client.ListOptions{}).ApplyOptions(opts)
	if _, is := list.(*networkingv1.IPAddressList); !is || o.LabelSelector == nil || selectsAllocated(o.LabelSelector) {
		return nil, apierrors.NewMethodNotSupported(
			schema.GroupResource{Group: networkingv1.GroupName, Resource: fmt.Sprintf("%T", list)},
			"watch",
		)
	}
	o.Namespace = v1alpha1.SystemNamespace
	w, err := b.Watch(ctx, &corev1.ServiceList{}, o)
	if err != nil {
		return nil, err
	}
	return watch.Filter(w, func(e watch.Event) (watch.Event, bool) {
		svc, is := e.Object.(*corev1.Service)
		switch {
		case !is: // an error, as it is
		case e.Type == watch.Bookmark:
			e.Object = &networkingv1.IPAddress{ObjectMeta: svc.ObjectMeta}
		case !isHold(svc):
			return e, false
		default:
			e.Object = reservedBy(svc)
		}
		return e, true
	}), nil
}

func (bitmap) unchangeable(verb string, o client.Object) error {
	if _, is := o.(*networkingv1.IPAddress); !is {
		return &OneRangeError{Verb: verb, Name: o.GetName()}
	}
	return apierrors.NewBadRequest(fmt.Sprintf("ipaddress %s cannot be %s: this cluster has none", o.GetName(), verb))
}

func notFound(resource, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Group: networkingv1.GroupName, Resource: resource}, name)
}

func alreadyExists(a netip.Addr) error {
	return apierrors.NewAlreadyExists(schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"}, a.String())
}
