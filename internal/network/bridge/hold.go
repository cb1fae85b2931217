package bridge

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const holder = "replumb"

// Hold keeps an address that no Service owns from being given to one, by the IPAddress of that
// name. The repair controller leaves alone those managed by others (managedByController in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/controller/repairip.go).
type Hold struct {
	Migration string
	Address   netip.Addr
	Bridge    types.NamespacedName
	// UID of the IPAddress, once it was placed or seen. Release then needs not look whose it is.
	UID types.UID
	// Original is the spec of the Service before it left. Tenants cannot write IPAddresses.
	Original string
	// Old and New are kept with it, if it is a memo: where the Service goes, and from where.
	Old, New netip.Addr
	// Heading is where the Service is on its way to, between the patches of a hop; else invalid.
	Heading netip.Addr
	// Service, if set, is named in the place of its bridge: API servers then take the address for
	// the Service's, whether they see it before or after the Service is at it.
	Service *HeldService
	// LeftAt is when the Service left the address, where another time than that of its creation.
	LeftAt time.Time
}

// HeldService is the Service for which an address is held, and the form in which it keeps the
// address itself; empty, if its bridge does.
type HeldService struct {
	Name string
	UID  types.UID
	Form v1alpha1.OverlapForm
}

// Memo is the hold that identifies a bridge while neither of its addresses is reserved, since the
// API server needs an address free to give it to a Service. Its own address is never given out:
// packets to 100::/64 are discarded (RFC 6666).
func Memo(migration string, of *corev1.Service, from, to netip.Addr) *Hold {
	return &Hold{
		Migration: migration, Address: MemoAddress(of.UID), Old: from, New: to,
		Bridge: types.NamespacedName{Namespace: of.Namespace, Name: Name(of.Name, of.UID)},
	}
}

// MemoAddress is that of the memo about a Service.
func MemoAddress(service types.UID) netip.Addr {
	sum, a := sha256.Sum256([]byte(service)), [16]byte{0: 0x01}
	copy(a[8:], sum[:])
	return netip.AddrFrom16(a)
}

func (h *Hold) Build() *networkingv1.IPAddress {
	holds := h.Bridge.Name
	if h.Service != nil {
		holds = h.Service.Name
	}
	return &networkingv1.IPAddress{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metav1.ObjectMeta{
			Name:        h.Address.String(),
			Annotations: h.notes(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOf(h.Address)),
				networkingv1.LabelManagedBy:       holder,
				v1alpha1.LabelMigration:           h.Migration,
				v1alpha1.LabelRole:                v1alpha1.RoleHold,
			},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: h.Bridge.Namespace, Name: holds,
		}},
	}
}

// Take makes the IPAddress of a Service one that replumb holds, in place.
func (h *Hold) Take(ip *networkingv1.IPAddress) {
	made := h.Build()
	ip.Labels, ip.Annotations, ip.Spec = made.Labels, made.Annotations, made.Spec
}

func (h *Hold) notes() map[string]string {
	notes := map[string]string{}
	if h.Original != "" {
		notes[v1alpha1.AnnotationOriginalSpec] = h.Original
	}
	if h.Old.IsValid() {
		notes[v1alpha1.AnnotationOldIP], notes[v1alpha1.AnnotationTargetIP] = h.Old.String(), h.New.String()
	}
	if h.Heading.IsValid() {
		notes[v1alpha1.AnnotationHeading] = h.Heading.String()
	}
	if h.Service != nil {
		notes[v1alpha1.AnnotationServiceUID] = string(h.Service.UID)
		if h.Service.Form != "" {
			notes[v1alpha1.AnnotationOverlap] = string(h.Service.Form)
		}
	}
	if !h.LeftAt.IsZero() {
		notes[v1alpha1.AnnotationMovedAt] = h.LeftAt.UTC().Format(time.RFC3339Nano)
	}
	return notes
}

// TakenError says that an address belongs to someone else.
type TakenError struct {
	Address netip.Addr
	By      string
}

func (e *TakenError) Error() string { return fmt.Sprintf("address %s is taken by %s", e.Address, e.By) }

// Advice says how the address gets free.
func (e *TakenError) Advice() string {
	return "have its owner give it up, if it can (kubectl get ipaddress " + e.Address.String() + " -o yaml names the owner), and run the same command again; " +
		"or let the Service that is to go there keep its address: " + v1alpha1.AnnotationStrategy + "=" + v1alpha1.StrategyPin
}

// Create creates the hold. If the address is someone else's it returns a TakenError.
func (h *Hold) Create(ctx context.Context, c client.Client) error {
	made, err := h.create(ctx, c)
	if err == nil && !made {
		err = h.Check(ctx, c)
	}
	return err
}

func (h *Hold) create(ctx context.Context, c client.Client) (made bool, err error) {
	ip := h.Build()
	err = c.Create(ctx, ip, client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("holding %s: %w", h.Address, err)
	}
	h.UID = ip.UID
	return true, nil
}

// PlaceAfter is Create for the address that a Service has left. A repair controller that was behind
// may have given it back to that Service (syncService in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator/controller/repairip.go), and would free it later: so that
// goes at once. A Service that is back there keeps it.
func (h *Hold) PlaceAfter(ctx context.Context, c client.Client, left types.NamespacedName) error {
	err := h.Create(ctx, c)
	var taken *TakenError
	if !errors.As(err, &taken) {
		return err
	}
	have := &networkingv1.IPAddress{}
	if err := c.Get(ctx, types.NamespacedName{Name: h.Address.String()}, have); err != nil {
		return engine.NotYet("holding %s: %w", h.Address, err)
	}
	parent := have.Spec.ParentRef
	if parent == nil || parent.Resource != "services" || parent.Namespace != left.Namespace || parent.Name != left.Name {
		return err
	}
	svc := &corev1.Service{}
	if err := c.Get(ctx, left, svc); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("service %s: %w", left, err)
	}
	if slices.Contains(svc.Spec.ClusterIPs, h.Address.String()) {
		return err
	}
	seen := client.Preconditions{UID: &have.UID, ResourceVersion: &have.ResourceVersion}
	if err := c.Delete(ctx, have, seen); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("address %s: %w", h.Address, err)
	}
	return engine.NotYet("address %s was given back to service %s, which has left it", h.Address, left)
}

// Check returns nil only if the hold is in place.
func (h *Hold) Check(ctx context.Context, c client.Client) error {
	have := &networkingv1.IPAddress{}
	if err := c.Get(ctx, types.NamespacedName{Name: h.Address.String()}, have); err != nil {
		return fmt.Errorf("holding %s: %w", h.Address, err)
	}
	if !h.Owns(have) {
		return &TakenError{Address: h.Address, By: ParentOf(have)}
	}
	h.UID, h.Original = have.UID, have.Annotations[v1alpha1.AnnotationOriginalSpec]
	h.Old, _ = netip.ParseAddr(have.Annotations[v1alpha1.AnnotationOldIP])
	h.New, _ = netip.ParseAddr(have.Annotations[v1alpha1.AnnotationTargetIP])
	h.Heading, _ = netip.ParseAddr(have.Annotations[v1alpha1.AnnotationHeading])
	return nil
}

// Note is Create with the notes of this hold in the place of those that it may have.
func (h *Hold) Note(ctx context.Context, c client.Client) error {
	made, err := h.create(ctx, c)
	if made || err != nil {
		return err
	}
	have := &networkingv1.IPAddress{}
	if err := c.Get(ctx, types.NamespacedName{Name: h.Address.String()}, have); err != nil {
		return fmt.Errorf("holding %s: %w", h.Address, err)
	}
	h.UID = have.UID
	switch want := h.Build(); {
	case !h.Owns(have):
		return &TakenError{Address: h.Address, By: ParentOf(have)}
	case sameHold(have, want):
		return nil
	}
	if err := h.Release(ctx, c); err != nil {
		return fmt.Errorf("holding %s: %w", h.Address, err)
	}
	return h.Create(ctx, c)
}

func sameHold(have, want *networkingv1.IPAddress) bool {
	for _, key := range []string{
		v1alpha1.AnnotationOriginalSpec, v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP, v1alpha1.AnnotationHeading,
		v1alpha1.AnnotationServiceUID, v1alpha1.AnnotationOverlap, v1alpha1.AnnotationMovedAt,
	} {
		if have.Annotations[key] != want.Annotations[key] {
			return false
		}
	}
	return have.Spec.ParentRef.Name == want.Spec.ParentRef.Name
}

// Release deletes the hold, and never an IPAddress of others.
func (h *Hold) Release(ctx context.Context, c client.Client) error {
	have := &networkingv1.IPAddress{}
	if h.UID != "" {
		have.Name = h.Address.String()
		err := c.Delete(ctx, have, client.Preconditions{UID: &h.UID})
		if !apierrors.IsConflict(err) { // another one has the name by now
			return client.IgnoreNotFound(err)
		}
	}
	err := c.Get(ctx, types.NamespacedName{Name: h.Address.String()}, have)
	if err != nil || !h.Owns(have) {
		return client.IgnoreNotFound(err)
	}
	return client.IgnoreNotFound(c.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}

// Owns reports whether an IPAddress is held for the same bridge.
func (h *Hold) Owns(ip *networkingv1.IPAddress) bool {
	key, ok := HeldFor(ip)
	return ok && key == h.Bridge
}

// HeldFor names the bridge an IPAddress is held for, or that the Service would have which keeps it
// itself, if it is a hold.
func HeldFor(ip *networkingv1.IPAddress) (types.NamespacedName, bool) {
	if ip.Labels[v1alpha1.LabelRole] != v1alpha1.RoleHold || ip.Spec.ParentRef == nil {
		return types.NamespacedName{}, false
	}
	key := types.NamespacedName{Namespace: ip.Spec.ParentRef.Namespace, Name: ip.Spec.ParentRef.Name}
	if uid := ip.Annotations[v1alpha1.AnnotationServiceUID]; uid != "" {
		key.Name = Name(key.Name, types.UID(uid))
	}
	return key, true
}

// LeftAt is when a Service left the address that is held for it, as only replumb and the API server
// can say.
func LeftAt(ip *networkingv1.IPAddress) time.Time {
	if at, err := time.Parse(time.RFC3339Nano, ip.Annotations[v1alpha1.AnnotationMovedAt]); err == nil {
		return at
	}
	return ip.CreationTimestamp.Time
}

// ParentOf names what an IPAddress belongs to.
func ParentOf(ip *networkingv1.IPAddress) string {
	p := ip.Spec.ParentRef
	if p == nil {
		return "no one"
	}
	if p.Namespace == "" {
		return p.Resource + " " + p.Name
	}
	return p.Resource + " " + p.Namespace + "/" + p.Name
}

// ReleaseAll deletes every hold of a migration that is held for a bridge.
func ReleaseAll(ctx context.Context, c client.Client, migration string, bridge types.NamespacedName) error {
	all := &networkingv1.IPAddressList{}
	err := c.List(ctx, all, client.MatchingLabels{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: v1alpha1.RoleHold})
	if err != nil {
		return fmt.Errorf("listing held addresses: %w", err)
	}
	for i := range all.Items {
		ip := &all.Items[i]
		if key, ok := HeldFor(ip); !ok || key != bridge {
			continue
		}
		if err := client.IgnoreNotFound(c.Delete(ctx, ip, client.Preconditions{UID: &ip.UID})); err != nil {
			return fmt.Errorf("address %s: %w", ip.Name, err)
		}
	}
	return nil
}
