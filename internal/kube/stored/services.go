package stored

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
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

// record is a Service as it is stored.
type record struct {
	key      string
	value    []byte
	revision int64
}

func (s *Services) Key(svc types.NamespacedName) string {
	return path.Join(s.Prefix, "services/specs", svc.Namespace, svc.Name)
}

// Check returns nil if a Service could be rewritten: it is stored in this revision, and understood.
// A newer revision is retryable.
func (s *Services) Check(ctx context.Context, svc *corev1.Service) error {
	r, err := s.read(ctx, svc)
	if err != nil {
		return err
	}
	if _, err := Readdress(r.value); err != nil {
		return about(svc, err)
	}
	return nil
}

// Rewrite swaps addresses of that very revision of a Service, or nothing. A newer revision, and a
// write of unknown outcome, are retryable.
func (s *Services) Rewrite(ctx context.Context, svc *corev1.Service, swaps ...Swap) error {
	r, err := s.read(ctx, svc)
	if err != nil {
		return err
	}
	value, err := Readdress(r.value, swaps...)
	if err != nil {
		return about(svc, err)
	}
	if slices.Equal(value, r.value) {
		return fmt.Errorf("service %s is at none of the addresses that it is to leave", keyOf(svc))
	}
	answer, err := s.Etcd.KV().Txn(ctx).
		If(clientv3.Compare(clientv3.ModRevision(r.key), "=", r.revision)).
		Then(clientv3.OpPut(r.key, string(value))).
		Commit()
	if err != nil {
		return etcd.Failed(err, "service %s: writing it to etcd", keyOf(svc))
	}
	if !answer.Succeeded {
		return changed(svc)
	}
	return nil
}

func (s *Services) read(ctx context.Context, svc *corev1.Service) (*record, error) {
	key := s.Key(keyOf(svc))
	answer, err := s.Etcd.KV().Get(ctx, key)
	if err != nil {
		return nil, etcd.Failed(err, "service %s: reading it from etcd", keyOf(svc))
	}
	if len(answer.Kvs) == 0 {
		return nil, &IdentityError{Service: keyOf(svc), Problem: "there is nothing at " + key}
	}
	kv := answer.Kvs[0]
	r := &record{key: key, value: kv.Value, revision: kv.ModRevision}
	have, err := Decode(kv.Value)
	switch {
	case err != nil:
		return nil, about(svc, err)
	case have.UID != svc.UID:
		return nil, &IdentityError{Service: keyOf(svc), Problem: "the object at " + key + " has another UID"}
	case strconv.FormatInt(kv.ModRevision, 10) != svc.ResourceVersion:
		return nil, s.elsewhere(svc, kv.ModRevision)
	case !slices.Equal(have.Spec.ClusterIPs, svc.Spec.ClusterIPs):
		return nil, &IdentityError{Service: keyOf(svc), Problem: "the object at " + key + " has other addresses in the same revision"}
	case kv.Lease != 0:
		return nil, about(svc, unknown("it has a lease"))
	}
	return r, nil
}

// elsewhere tells a newer revision from a Service that is kept in another etcd.
func (s *Services) elsewhere(svc *corev1.Service, revision int64) error {
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
