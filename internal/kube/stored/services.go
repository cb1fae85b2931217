package stored

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/replumb/replumb/internal/kube/etcd"
)

// DefaultPrefix is where API servers keep objects, unless --etcd-prefix says otherwise.
const DefaultPrefix = "/registry"

// Services are those of a cluster, as its API servers keep them.
type Services struct {
	// Etcd of the API servers.
	Etcd *etcd.Client
	// Prefix is what API servers are given as --etcd-prefix.
	Prefix string
}

// Exchange is what one transaction changes: a Service, and IPAddresses.
type Exchange struct {
	// Service as the API server has answered with it. Nothing is written to another revision.
	Service *corev1.Service
	// Change gets the Service as it is stored. Nil leaves it alone: addresses alone are written.
	Change func(*corev1.Service)
	// Addresses are changed with it, by name. Each has to exist; an error refuses the exchange.
	Addresses map[string]func(*networkingv1.IPAddress) error
	// Lock, if set, has to be held at the very moment of the write.
	Lock *HeldLease
}

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

// Check returns nil if a Service could be changed: it is stored in this revision, and it and its
// IPAddresses are understood. A newer revision is retryable.
func (s *Services) Check(ctx context.Context, svc *corev1.Service) error {
	asked := Exchange{Service: svc, Addresses: map[string]func(*networkingv1.IPAddress) error{}}
	for _, a := range svc.Spec.ClusterIPs {
		asked.Addresses[a] = func(*networkingv1.IPAddress) error { return nil }
	}
	_, err := s.prepare(ctx, asked)
	return err
}

// Exchange writes in one transaction what is to change, if nothing of it has changed since it was
// read and the lock is held. Watchers see one change of each object. x.Service then is what API
// servers answer with from now on.
func (s *Services) Exchange(ctx context.Context, x Exchange) error {
	p, err := s.prepare(ctx, x)
	if err != nil {
		return err
	}
	answer, err := s.Etcd.KV().Txn(ctx).If(p.unchanged...).Then(p.puts...).Commit()
	if err != nil {
		return etcd.Failed(err, "service %s: writing it to etcd", keyOf(x.Service))
	}
	if !answer.Succeeded {
		return changed(x.Service)
	}
	if p.service != nil {
		p.service.ResourceVersion = strconv.FormatInt(answer.Header.Revision, 10)
		*x.Service = *p.service
	}
	return nil
}

// prepared is a transaction.
type prepared struct {
	unchanged []clientv3.Cmp
	puts      []clientv3.Op
	// service is what the Service becomes; nil, if it is left alone.
	service *corev1.Service
}

func (p *prepared) put(kv *mvccpb.KeyValue, value []byte) {
	p.unchanged = append(p.unchanged, clientv3.Compare(clientv3.ModRevision(string(kv.Key)), "=", kv.ModRevision))
	if value != nil {
		p.puts = append(p.puts, clientv3.OpPut(string(kv.Key), string(value)))
	}
}

func (s *Services) prepare(ctx context.Context, x Exchange) (*prepared, error) {
	stored, err := s.read(ctx, x)
	if err != nil {
		return nil, err
	}
	p := &prepared{}
	if err := s.changeService(p, stored, x); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(x.Addresses)) {
		if err := s.changeAddress(p, stored[s.addressKey(name)], name, x); err != nil {
			return nil, err
		}
	}
	if x.Lock != nil {
		return p, s.checkLock(p, stored, x.Lock)
	}
	return p, nil
}

// read gets all that an exchange is about in one revision.
func (s *Services) read(ctx context.Context, x Exchange) (map[string]*mvccpb.KeyValue, error) {
	keys := []string{s.serviceKey(keyOf(x.Service))}
	for name := range x.Addresses {
		keys = append(keys, s.addressKey(name))
	}
	if x.Lock != nil {
		keys = append(keys, s.leaseKey(x.Lock.Lease))
	}
	var gets []clientv3.Op
	for _, key := range keys {
		gets = append(gets, clientv3.OpGet(key))
	}
	answer, err := s.Etcd.KV().Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return nil, etcd.Failed(err, "service %s: reading it from etcd", keyOf(x.Service))
	}
	all := map[string]*mvccpb.KeyValue{}
	for _, r := range answer.Responses {
		for _, kv := range r.GetResponseRange().GetKvs() {
			all[string(kv.Key)] = kv
		}
	}
	return all, nil
}

func (s *Services) changeService(p *prepared, stored map[string]*mvccpb.KeyValue, x Exchange) error {
	svc, key := x.Service, s.serviceKey(keyOf(x.Service))
	kv := stored[key]
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
	if x.Change == nil {
		p.put(kv, nil)
		return nil
	}
	x.Change(have)
	value, err := around.encode(have)
	if err != nil {
		return about(svc, err)
	}
	p.put(kv, value)
	p.service = have
	return nil
}

func (s *Services) changeAddress(p *prepared, kv *mvccpb.KeyValue, name string, x Exchange) error {
	if kv == nil {
		return engine.NotYet("service %s: there is no IPAddress %s in etcd", keyOf(x.Service), name)
	}
	ip := &networkingv1.IPAddress{}
	around, err := decode(kv.Value, addressKind(), ip)
	if err == nil && kv.Lease != 0 {
		err = unknown("it has a lease")
	}
	if err != nil {
		return fmt.Errorf("ipaddress %s in etcd: %w", name, err)
	}
	if err := x.Addresses[name](ip); err != nil {
		return err
	}
	value, err := around.encode(ip)
	if err != nil {
		return fmt.Errorf("ipaddress %s in etcd: %w", name, err)
	}
	p.put(kv, value)
	return nil
}

// checkLock lets a transaction pass in the revision of the Lease in which the lock was seen to be
// held. A renewal in between is retried like any other change.
func (s *Services) checkLock(p *prepared, stored map[string]*mvccpb.KeyValue, lock *HeldLease) error {
	kv := stored[s.leaseKey(lock.Lease)]
	if kv == nil {
		return &LockError{lock.Lease}
	}
	lease := &coordinationv1.Lease{}
	if _, err := open(kv.Value, lease); err != nil {
		return fmt.Errorf("lease %s in etcd: %w", lock.Lease, err)
	}
	if !lock.Holds(lease) {
		return &LockError{lock.Lease}
	}
	p.put(kv, nil)
	return nil
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
