package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/cidr"
)

// Ensure creates the bridge, or makes it follow its Service. Its ClusterIP is the highest free one
// of pool: a random one could be the target of another Service.
func (b *Bridge) Ensure(ctx context.Context, c client.Client, pool *cidr.Allocator) error {
	have, err := b.Read(ctx, c)
	if errors.As(err, new(*MissingError)) {
		_, err = b.Make(ctx, c, pool)
		return err
	}
	if err != nil {
		return err
	}
	return b.Adjust(ctx, c, have)
}

// Read returns a MissingError if there is no bridge.
func (b *Bridge) Read(ctx context.Context, c client.Reader) (*corev1.Service, error) {
	have := &corev1.Service{}
	err := c.Get(ctx, b.Key(), have)
	if apierrors.IsNotFound(err) {
		return nil, &MissingError{Name: b.Key().String()}
	}
	if err != nil {
		return nil, fmt.Errorf("bridge %s: %w", b.Key(), err)
	}
	return have, nil
}

// Make is Ensure for a missing bridge, which it returns. One that exists by now is an error.
func (b *Bridge) Make(ctx context.Context, c client.Client, pool *cidr.Allocator) (*corev1.Service, error) {
	if err := b.inside(); err != nil {
		return nil, err
	}
	have, err := b.create(ctx, c, pool)
	if err == nil {
		err = b.copyEndpoints(ctx, c, have)
	}
	if err == nil {
		err = b.Announce(ctx, c, have)
	}
	return have, b.wrap(err)
}

// Adjust makes a bridge follow its Service, in one write where possible, and keeps its form. It
// adds an address only once the endpoints are right, since the Service may be there too.
func (b *Bridge) Adjust(ctx context.Context, c client.Client, have *corev1.Service) error {
	if err := b.inside(); err != nil {
		return err
	}
	b.Form = FormOf(have)
	difference := Difference(have, b.Build(), b.Reserved)
	if difference != nil && !errors.As(difference, new(*DriftError)) {
		return b.wrap(difference)
	}
	if !have.DeletionTimestamp.IsZero() {
		return b.wrap(engine.NotYet("being deleted"))
	}
	err := b.copyEndpoints(ctx, c, have)
	if err == nil && difference != nil {
		err = b.update(ctx, c, have)
	}
	if err == nil && b.Grows(have) && b.Service.Spec.Type != corev1.ServiceTypeExternalName {
		err = (&Endpoints{Client: c}).Same(ctx, client.ObjectKeyFromObject(b.Service), b.Key())
	}
	if err == nil {
		err = b.Announce(ctx, c, have)
	}
	return b.wrap(err)
}

// Admitted asks by dry run whether a bridge may answer where it should.
func (b *Bridge) Admitted(ctx context.Context, c client.Client, have *corev1.Service) error {
	return b.wrap(b.Announce(ctx, client.NewDryRunClient(c), have.DeepCopy()))
}

func (b *Bridge) wrap(err error) error {
	if err != nil {
		return fmt.Errorf("bridge %s: %w", b.Key(), err)
	}
	return nil
}

func (b *Bridge) copyEndpoints(ctx context.Context, c client.Client, have *corev1.Service) error {
	if len(b.Service.Spec.Selector) > 0 {
		return nil
	}
	return copyEndpoints(ctx, c, client.ObjectKeyFromObject(b.Service), have)
}

func (b *Bridge) create(ctx context.Context, c client.Client, pool *cidr.Allocator) (*corev1.Service, error) {
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

// update changes all differences but the addresses at which it answers.
func (b *Bridge) update(ctx context.Context, c client.Client, have *corev1.Service) error {
	was, want := have.DeepCopy(), b.Build()
	have.Spec.Selector, have.Spec.Ports = want.Spec.Selector, want.Spec.Ports
	have.Spec.SessionAffinity, have.Spec.SessionAffinityConfig = want.Spec.SessionAffinity, want.Spec.SessionAffinityConfig
	have.Spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	have.Spec.TrafficDistribution = want.Spec.TrafficDistribution
	if b.Form != v1alpha1.BridgeExternalIPs || len(have.Spec.ExternalIPs) > 0 { // else it comes with the addresses
		have.Spec.ExternalTrafficPolicy = want.Spec.ExternalTrafficPolicy
	}
	if bothFamilies(&have.Spec) != bothFamilies(&want.Spec) {
		turn(&have.Spec, want.Spec.IPFamilies)
	}
	if b.Form != v1alpha1.BridgeExternalIPs {
		have.Spec.ExternalIPs = nil
	}
	have.Labels, have.Annotations = with(have.Labels, want.Labels), with(have.Annotations, want.Annotations)
	for _, key := range steering() {
		if _, set := want.Annotations[key]; !set {
			delete(have.Annotations, key)
		}
	}
	if equality.Semantic.DeepEqual(was, have) {
		return nil
	}
	return c.Patch(ctx, have, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager))
}

// turn makes a bridge dual-stack, or of its first family alone.
func turn(spec *corev1.ServiceSpec, families []corev1.IPFamily) {
	if len(families) > 1 {
		spec.IPFamilies, spec.IPFamilyPolicy = families, ptr.To(corev1.IPFamilyPolicyRequireDualStack)
		return
	}
	spec.IPFamilies, spec.ClusterIPs = spec.IPFamilies[:1], spec.ClusterIPs[:1]
	spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
}

// Grows reports whether the bridge is to answer where one that was read does not.
func (b *Bridge) Grows(have *corev1.Service) bool {
	at := slices.Clone(have.Spec.ExternalIPs)
	for _, i := range have.Status.LoadBalancer.Ingress {
		at = append(at, i.IP)
	}
	return slices.ContainsFunc(b.addresses(), func(a netip.Addr) bool { return !slices.Contains(at, a.String()) })
}

func with(have, want map[string]string) map[string]string {
	all := maps.Clone(have)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, want)
	return all
}

// Announce changes the addresses at which a bridge answers, and nothing else. It comes last:
// kube-proxy programs an address when it sees it.
func (b *Bridge) Announce(ctx context.Context, c client.Client, have *corev1.Service) error {
	b.Form = FormOf(have)
	want, was := b.Build(), have.DeepCopy()
	if b.Form == v1alpha1.BridgeExternalIPs {
		if slices.Equal(have.Spec.ExternalIPs, want.Spec.ExternalIPs) {
			return nil
		}
		have.Spec.ExternalIPs, have.Spec.ExternalTrafficPolicy = want.Spec.ExternalIPs, want.Spec.ExternalTrafficPolicy
		return c.Patch(ctx, have, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
			client.FieldOwner(v1alpha1.FieldManager))
	}
	if sameIngress(have.Status, want.Status) {
		return nil
	}
	have.Status.LoadBalancer = want.Status.LoadBalancer
	return c.Status().Patch(ctx, have, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager))
}

// Proven returns the bridge, and nil only if it fits its Service and has the same endpoints.
func (b *Bridge) Proven(ctx context.Context, c client.Reader, endpoints *Endpoints) (*corev1.Service, error) {
	have, err := b.Read(ctx, c)
	if err != nil {
		return nil, err
	}
	return have, b.Fits(ctx, have, endpoints)
}

// Fits is Proven for a bridge just read. In the middle of a hop there are no endpoints to compare:
// those of a Service of type ExternalName are left as they were (syncService in k8s.io/kubernetes
// pkg/controller/endpointslice/endpointslice_controller.go).
func (b *Bridge) Fits(ctx context.Context, have *corev1.Service, endpoints *Endpoints) error {
	b.Form = FormOf(have)
	if err := Difference(have, b.Build(), b.Reserved); err != nil {
		return err
	}
	if b.Service.Spec.Type == corev1.ServiceTypeExternalName {
		return nil
	}
	return endpoints.Same(ctx, client.ObjectKeyFromObject(b.Service), b.Key())
}

// MissingError says that there is no bridge.
type MissingError struct {
	Name string
}

func (e *MissingError) Error() string { return fmt.Sprintf("bridge %s does not exist", e.Name) }

// Advice says how to get it back.
func (*MissingError) Advice() string {
	return "something else deletes bridges (the audit log says who): have it leave Services with the label " + v1alpha1.LabelRole + "=" +
		v1alpha1.RoleBridge + " alone, and run the same command again, which makes it anew"
}

// readyEndpoints are sorted. A missing ready condition means ready (k8s.io/api discovery/v1,
// EndpointConditions).
func readyEndpoints(have []discoveryv1.EndpointSlice, key types.NamespacedName) []string {
	var all []string
	for i := range have {
		s := &have[i]
		if s.Namespace != key.Namespace || s.Labels[discoveryv1.LabelServiceName] != key.Name {
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

// IsTaken reports the refusal of a ClusterIP in use (ErrAllocated in k8s.io/kubernetes
// pkg/registry/core/service/ipallocator/interfaces.go, which clients see as text only).
func IsTaken(err error) bool {
	return apierrors.IsInvalid(err) && strings.Contains(err.Error(), "provided IP is already allocated")
}

// NotReadyYet makes a refusal retryable if the API server has yet to see a new ServiceCIDR by its
// own watch (ErrMismatchedNetwork and ErrNotReady in the same file).
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
	// The bridge first: a follower makes copies for one that is there.
	if err := c.Delete(ctx, have, client.Preconditions{UID: &have.UID}); client.IgnoreNotFound(err) != nil {
		return err
	}
	if len(have.Spec.Selector) > 0 {
		return nil
	}
	return removeCopies(ctx, c, key)
}
