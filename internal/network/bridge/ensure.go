package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Ensure creates the bridge, or makes an existing one follow its Service. A bridge needs a ClusterIP of its own; it is
// asked for explicitly, from the top of pool, because an address the API server chose at random could be one that a
// Service is about to move to.
func (b *Bridge) Ensure(ctx context.Context, c client.Client, pool *cidr.Pool) error {
	if err := b.inside(); err != nil {
		return err
	}
	have := &corev1.Service{}
	err := c.Get(ctx, b.Key(), have)
	switch {
	case apierrors.IsNotFound(err):
		return b.Make(ctx, c, pool)
	case err == nil:
		err = b.update(ctx, c, have)
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", b.Key(), err)
	}
	return b.complete(ctx, c, have)
}

// Make is Ensure for a bridge that has just been missed. One that was made meanwhile is an error.
func (b *Bridge) Make(ctx context.Context, c client.Client, pool *cidr.Pool) error {
	if err := b.inside(); err != nil {
		return err
	}
	have, err := b.create(ctx, c, pool)
	if err != nil {
		return fmt.Errorf("bridge %s: %w", b.Key(), err)
	}
	return b.complete(ctx, c, have)
}

// complete gives a bridge what is not in its spec.
func (b *Bridge) complete(ctx context.Context, c client.Client, have *corev1.Service) error {
	if len(b.Service.Spec.Selector) == 0 {
		if err := CopyEndpoints(ctx, c, client.ObjectKeyFromObject(b.Service), have); err != nil {
			return fmt.Errorf("bridge %s: %w", b.Key(), err)
		}
	}
	return b.writeStatus(ctx, c, have)
}

func (b *Bridge) create(ctx context.Context, c client.Client, pool *cidr.Pool) (*corev1.Service, error) {
	for {
		own, err := pool.Highest()
		if err != nil {
			return nil, err
		}
		withIP := *b
		withIP.Own = own
		svc := withIP.Build()
		if err = c.Create(ctx, svc, client.FieldOwner(v1alpha1.FieldManager)); !IsTaken(err) {
			return svc, NotReadyYet(err)
		}
	}
}

// update changes what differs. The form of an existing bridge stays as it is.
func (b *Bridge) update(ctx context.Context, c client.Client, have *corev1.Service) error {
	b.Form = FormOf(have)
	want := b.Build()
	difference := Difference(have, want, b.Reserved)
	var drift *DriftError
	if !errors.As(difference, &drift) {
		return difference
	}
	if !have.DeletionTimestamp.IsZero() {
		return engine.NotYet("being deleted")
	}
	was := have.DeepCopy()
	have.Spec.Selector, have.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	have.Spec.SessionAffinity, have.Spec.SessionAffinityConfig = want.Spec.SessionAffinity, want.Spec.SessionAffinityConfig
	have.Spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	have.Spec.TrafficDistribution = want.Spec.TrafficDistribution
	have.Spec.ExternalTrafficPolicy, have.Spec.ExternalIPs = want.Spec.ExternalTrafficPolicy, want.Spec.ExternalIPs
	have.Labels, have.Annotations = with(have.Labels, want.Labels), with(have.Annotations, want.Annotations)
	return c.Patch(ctx, have, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager))
}

// with adds to what there is what there has to be.
func with(have, want map[string]string) map[string]string {
	all := maps.Clone(have)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	return all
}

// writeStatus is last: kube-proxy programs the addresses when it sees them, and by then the bridge is complete.
func (b *Bridge) writeStatus(ctx context.Context, c client.Client, have *corev1.Service) error {
	want := b.Build()
	if sameIngress(have.Status, want.Status) {
		return nil
	}
	was := have.DeepCopy()
	have.Status.LoadBalancer = want.Status.LoadBalancer
	err := c.Status().Patch(ctx, have, client.MergeFrom(was), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil {
		return fmt.Errorf("status of bridge %s: %w", b.Key(), err)
	}
	return nil
}

// Proven returns nil only if the bridge exists, is what the Service needs now, and has the Service's endpoints. A Service
// in the middle of a hop has none to compare with: while it is of type ExternalName its EndpointSlices are left as they
// were (syncService in k8s.io/kubernetes pkg/controller/endpointslice/endpointslice_controller.go), and pods may have
// come and gone since.
func (b *Bridge) Proven(ctx context.Context, c client.Client) error {
	have := &corev1.Service{}
	err := c.Get(ctx, b.Key(), have)
	if apierrors.IsNotFound(err) {
		return &MissingError{Name: b.Key().String()}
	}
	if err != nil {
		return fmt.Errorf("bridge %s: %w", b.Key(), err)
	}
	b.Form = FormOf(have)
	if err := Difference(have, b.Build(), b.Reserved); err != nil {
		return err
	}
	if b.Service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return SameEndpoints(ctx, c, client.ObjectKeyFromObject(b.Service), b.Key())
}

// MissingError says that there is no bridge.
type MissingError struct {
	Name string
}

func (e *MissingError) Error() string { return fmt.Sprintf("bridge %s does not exist", e.Name) }

// SameEndpoints returns nil if two Services of one namespace have the same ready endpoints. Having none is the same as
// having none. Both are read by one list: a list that must not be stale waits until the API server's cache has caught up,
// which takes far longer than anything else a step asks for.
func SameEndpoints(ctx context.Context, c client.Client, a, b types.NamespacedName) error {
	both, err := labels.NewRequirement(discoveryv1.LabelServiceName, selection.In, []string{a.Name, b.Name})
	if err != nil {
		return fmt.Errorf("endpoints of service %s: %w", a, err)
	}
	all := &discoveryv1.EndpointSliceList{}
	selected := client.MatchingLabelsSelector{Selector: labels.NewSelector().Add(*both)}
	if err := c.List(ctx, all, client.InNamespace(a.Namespace), selected); err != nil {
		return fmt.Errorf("endpoints of services %s and %s: %w", a, b, err)
	}
	ofA, ofB := readyEndpoints(all.Items, a), readyEndpoints(all.Items, b)
	if !slices.Equal(ofA, ofB) {
		return engine.NotYet("service %s has %d ready endpoints that are not those of %s (%d)", b, len(ofB), a, len(ofA))
	}
	return nil
}

// readyEndpoints are address and port of each ready endpoint of a Service, sorted. A missing ready condition means ready
// (k8s.io/api discovery/v1, EndpointConditions).
func readyEndpoints(have []discoveryv1.EndpointSlice, key types.NamespacedName) []string {
	var all []string
	for i := range have {
		s := &have[i]
		if s.Labels[discoveryv1.LabelServiceName] != key.Name {
			continue
		}
		for _, e := range s.Endpoints {
			if e.Conditions.Ready != nil && !*e.Conditions.Ready {
				continue
			}
			for _, a := range e.Addresses {
				all = append(all, endpointPorts(a, s.Ports)...)
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func endpointPorts(address string, ports []discoveryv1.EndpointPort) []string {
	all := []string{address}
	for _, p := range ports {
		var b strings.Builder
		b.WriteString(address)
		if p.Name != nil {
			b.WriteString(" " + *p.Name)
		}
		if p.Protocol != nil {
			b.WriteString(" " + string(*p.Protocol))
		}
		if p.Port != nil {
			fmt.Fprintf(&b, " %d", *p.Port)
		}
		all = append(all, b.String())
	}
	return all
}

// IsTaken reports whether the API server refused a ClusterIP because someone else has it (ErrAllocated in
// k8s.io/kubernetes pkg/registry/core/service/ipallocator/interfaces.go, which reaches clients only as text).
func IsTaken(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "provided IP is already allocated")
}

// NotReadyYet turns the refusal of an API server that has not heard of a new ServiceCIDR yet into one to try again:
// each API server learns of it by its own watch (ErrMismatchedNetwork and ErrNotReady in the same file).
func NotReadyYet(err error) error {
	if apierrors.IsInvalid(err) && (strings.Contains(err.Error(), "does not match the current range") ||
		strings.Contains(err.Error(), "allocator not ready")) {
		return engine.NotYet("%w", err)
	}
	return err
}

// Remove deletes the bridge of a Service, if it is there and replumb's.
func Remove(ctx context.Context, c client.Client, key types.NamespacedName) error {
	have := &corev1.Service{}
	if err := c.Get(ctx, key, have); err != nil {
		return client.IgnoreNotFound(err)
	}
	return Delete(ctx, c, have)
}

// Delete is Remove for a bridge that has just been read.
func Delete(ctx context.Context, c client.Client, have *corev1.Service) error {
	key := client.ObjectKeyFromObject(have)
	if have.Labels[v1alpha1.LabelRole] != v1alpha1.RoleBridge && !Made(have) {
		return &ForeignError{Kind: "Service", Name: key.String()}
	}
	if len(have.Spec.Selector) == 0 {
		if err := removeCopies(ctx, c, key); err != nil {
			return err
		}
	}
	return client.IgnoreNotFound(c.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}
