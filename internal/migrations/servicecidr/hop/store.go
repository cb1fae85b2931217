package hop

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/stored"
)

// Store is where API servers keep Services.
type Store interface {
	// Check says why single Services could not be rewritten. It fails if none can be looked at.
	Check(ctx context.Context, all []*corev1.Service) (map[types.NamespacedName]error, error)
	// Rewrite swaps addresses of a Service in the revision that it is in.
	Rewrite(ctx context.Context, svc *corev1.Service, swaps ...stored.Swap) error
}

// EtcdStore connects for each call, since members and certificates change in between.
type EtcdStore struct {
	Spec   *v1alpha1.StoreSpec
	Client client.Client
}

func (s EtcdStore) open(ctx context.Context) (*stored.Services, error) {
	config, err := s.certificates(ctx)
	if err != nil {
		return nil, err
	}
	c, err := etcd.Open(ctx, etcd.Config{Endpoints: s.Spec.Endpoints, TLS: config})
	if err != nil {
		return nil, err
	}
	return &stored.Services{Etcd: c, Prefix: s.Spec.Prefix}, nil
}

func (s EtcdStore) certificates(ctx context.Context) (*tls.Config, error) {
	switch {
	case s.Spec.Secret != "":
		key := types.NamespacedName{Namespace: v1alpha1.SystemNamespace, Name: s.Spec.Secret}
		secret := &corev1.Secret{}
		err := s.Client.Get(ctx, key, secret)
		if apierrors.IsNotFound(err) {
			return nil, &fault.Hinted{
				Err: fmt.Errorf("secret %s is not there", key),
				Hint: "kubectl create secret generic -n " + key.Namespace + " " + key.Name +
					" --from-file=ca.crt=… --from-file=tls.crt=… --from-file=tls.key=…",
			}
		}
		if err != nil {
			return nil, fmt.Errorf("secret %s: %w", key, err)
		}
		return etcd.Parse(key.String(), secret.Data["ca.crt"], secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	case s.Spec.CAFile != "":
		return etcd.Files{CA: s.Spec.CAFile, Cert: s.Spec.CertFile, Key: s.Spec.KeyFile}.Load()
	}
	return nil, nil // the API takes that on the loopback address alone
}

func (s EtcdStore) Check(ctx context.Context, all []*corev1.Service) (refused map[types.NamespacedName]error, err error) {
	kept, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, kept.Etcd.Close()) }()
	refused = map[types.NamespacedName]error{}
	for _, svc := range all {
		switch err := kept.Check(ctx, svc); {
		case stored.Permanent(err):
			refused[client.ObjectKeyFromObject(svc)] = err
		case errors.Is(err, stored.ErrChanged): // since it was listed: its turn comes with what it is then
		case err != nil:
			return nil, err
		}
	}
	return refused, nil
}

func (s EtcdStore) Rewrite(ctx context.Context, svc *corev1.Service, swaps ...stored.Swap) (err error) {
	kept, err := s.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Etcd.Close()) }()
	return kept.Rewrite(ctx, svc, swaps...)
}
