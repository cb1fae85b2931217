package stored

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/internal/engine"
)

// DefaultPrefix is where API servers keep objects, unless --etcd-prefix says otherwise.
const DefaultPrefix = "/registry"

// Services are those of a cluster, as its API servers keep them.
type Services struct {
	// Etcd of the API servers.
	Etcd interface {
		KV() clientv3.KV
		Close() error
	}
	// Prefix is what API servers are given as --etcd-prefix.
	Prefix string
}

// Exchange is what changes at once: a Service, and IPAddresses.
type Exchange struct {
	// Service as the API server has answered with it. Nothing is written to another revision.
	Service *corev1.Service
	// Change gets the Service as it is stored. Nil leaves it alone: addresses alone are written.
	Change func(*corev1.Service)
	// Addresses are changed with it, by name; nil leaves one as it is. An error refuses the
	// exchange.
	Addresses map[string]func(*networkingv1.IPAddress) error
	// Make, if set, is how those are made that are not there. Changes of such set the time of
	// creation, which no other lacks. Without Make each has to exist.
	Make *Making
	// Known, if set, gets what the exchange leaves of its objects. One that begins with all of its
	// objects known does not read them.
	Known *Known
}

// Known are objects as a write has left them.
type Known struct{ kept map[string]*mvccpb.KeyValue }

// HeldLease is a Lease, and whether it is held as the writer believes.
type HeldLease struct {
	Lease types.NamespacedName
	Holds func(*coordinationv1.Lease) bool
}

// IdentityError says that etcd is another cluster's, or a copy of this one's.
type IdentityError struct {
	Service types.NamespacedName
	Problem string
}

func (e *IdentityError) Error() string {
	return fmt.Sprintf("service %s: etcd is not this cluster's: %s", e.Service, e.Problem)
}

func (*IdentityError) Advice() string {
	return "name the etcd of these API servers, and their --etcd-prefix: their flags are in /etc/kubernetes/manifests/kube-apiserver.yaml with kubeadm"
}

// LockError says that the lock is another's by now, or nobody's: nothing was written.
type LockError struct{ Lease types.NamespacedName }

func (e *LockError) Error() string { return fmt.Sprintf("lease %s is not held any more", e.Lease) }

// Revokes implements engine.Revocation.
func (*LockError) Revokes() {}

// The keys of objects (k8s.io/kubernetes pkg/kubeapiserver/default_storage_factory_builder.go).

func (s *Services) serviceKey(svc types.NamespacedName) string {
	return path.Join(s.Prefix, "services/specs", svc.Namespace, svc.Name)
}

func (s *Services) addressKey(name string) string { return path.Join(s.Prefix, "ipaddresses", name) }

func (s *Services) leaseKey(lease types.NamespacedName) string {
	return path.Join(s.Prefix, "leases", lease.Namespace, lease.Name)
}

// Check says of each Service, in their order, why it could not be changed; nil if it could: it is
// stored in this revision, and it and its IPAddresses are understood. A newer revision is
// retryable.
func (s *Services) Check(ctx context.Context, all []*corev1.Service) []error {
	asked := make([]Exchange, len(all))
	for i, svc := range all {
		asked[i] = Exchange{Service: svc, Addresses: map[string]func(*networkingv1.IPAddress) error{}}
		for _, a := range svc.Spec.ClusterIPs {
			asked[i].Addresses[a] = func(*networkingv1.IPAddress) error { return nil }
		}
	}
	entries := entriesOf(asked)
	for some := range slices.Chunk(entries, together) {
		s.prepare(ctx, nil, some)
	}
	return refusals(entries)
}

// change puts into a transaction what an exchange changes.
func (s *Services) change(e *entry) error {
	if err := s.changeService(e); err != nil {
		return err
	}
	return s.changeAddresses(e)
}

func (s *Services) changeService(e *entry) error {
	svc, key := e.Service, s.serviceKey(keyOf(e.Service))
	kv := e.kept[key]
	if kv == nil {
		return &IdentityError{Service: keyOf(svc), Problem: "there is nothing at " + key}
	}
	have := &corev1.Service{}
	around, err := decode(kv.Value, serviceKind(), have)
	switch {
	case err != nil:
		return about(svc, err)
	case have.UID != svc.UID:
		return &IdentityError{Service: keyOf(svc), Problem: "the object at " + key + " has another UID"}
	case strconv.FormatInt(kv.ModRevision, 10) != svc.ResourceVersion:
		return elsewhere(svc, kv.ModRevision)
	case !slices.Equal(have.Spec.ClusterIPs, svc.Spec.ClusterIPs):
		return &IdentityError{Service: keyOf(svc), Problem: "the object at " + key + " has other addresses in the same revision"}
	case kv.Lease != 0:
		return about(svc, unknown("it has a lease"))
	}
	if e.Change == nil {
		e.keep(kv)
		return nil
	}
	e.Change(have)
	value, err := around.encode(have)
	if err != nil {
		return about(svc, err)
	}
	e.replace(kv, value)
	e.becomes = have
	return nil
}

// checkLock returns the revision of the Lease in which the lock was seen to be held. A renewal in
// between is tried again like any other change.
func (s *Services) checkLock(kept map[string]*mvccpb.KeyValue, lock *HeldLease) ([]clientv3.Cmp, error) {
	kv := kept[s.leaseKey(lock.Lease)]
	if kv == nil {
		return nil, &LockError{lock.Lease}
	}
	lease := &coordinationv1.Lease{}
	if _, err := open(kv.Value, lease); err != nil {
		return nil, fmt.Errorf("lease %s in etcd: %w", lock.Lease, err)
	}
	if !lock.Holds(lease) {
		return nil, &LockError{lock.Lease}
	}
	return []clientv3.Cmp{since(kv)}, nil
}

// elsewhere tells a newer revision from a Service that is kept in another etcd.
func elsewhere(svc *corev1.Service, revision int64) error {
	answered, err := strconv.ParseInt(svc.ResourceVersion, 10, 64)
	if err == nil && revision > answered {
		return changed(svc)
	}
	return &IdentityError{
		Service: keyOf(svc),
		Problem: fmt.Sprintf("the API server answers with revision %s, and it has %d", svc.ResourceVersion, revision),
	}
}

// ErrChanged says that a Service was changed after the API server had answered with it.
var ErrChanged = errors.New("it was changed by another meanwhile")

func changed(svc *corev1.Service) error {
	return engine.NotYet("service %s: %w: etcd has a later revision than %s", keyOf(svc), ErrChanged, svc.ResourceVersion)
}

func about(svc *corev1.Service, err error) error {
	return fmt.Errorf("service %s in etcd: %w", keyOf(svc), err)
}

// Permanent errors do not pass: another cluster's etcd, or an unknown encoding.
func Permanent(err error) bool {
	return errors.As(err, new(*IdentityError)) || errors.As(err, new(*EncodingError))
}

func keyOf(svc *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
}
