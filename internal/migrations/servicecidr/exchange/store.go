// Package exchange has the addresses of Services change places in etcd: what is written of each,
// and how etcd is reached.
package exchange

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/safety/lease"
)

// Store is where API servers keep Services.
type Store interface {
	// Check says why single Services could not be rewritten. It fails if none can be looked at.
	Check(ctx context.Context, all []*corev1.Service) (map[types.NamespacedName]error, error)
	// Exchange writes Services and IPAddresses in the revisions that they are in, as long as the
	// lock is held, and says in their order why one was not written.
	Exchange(ctx context.Context, all ...stored.Exchange) []error
	// DeleteAddresses deletes IPAddresses in the resourceVersions that they are in, as long as the
	// lock is held, and returns those that it has not deleted.
	DeleteAddresses(ctx context.Context, versions map[string]string) (left map[string]string, err error)
}

// Etcd connects anew every now and then, and after an error, since members and certificates
// change in between.
type Etcd struct {
	Spec   *v1alpha1.StoreSpec
	Client client.Client
	// Relay reaches etcd in the place of what the Migration names; nil, if it names something.
	Relay *etcdrelay.Relay

	mu     sync.Mutex
	opened *connection
	// tried is whether a connection was asked for since Close.
	tried bool
}

// connection is closed by the last who uses it.
type connection struct {
	*stored.Services

	since time.Time
	users sync.WaitGroup
	stale bool
}

// renewAfter is how long a connection is used.
const renewAfter = 30 * time.Second

// use calls do with a connection, which others use as well.
func (s *Etcd) use(ctx context.Context, do func(*stored.Services) error) error {
	c, err := s.take(ctx)
	if err != nil {
		return err
	}
	defer c.users.Done()
	if err = do(c.Services); err != nil {
		s.mu.Lock()
		c.stale = true
		s.mu.Unlock()
	}
	return err
}

func (s *Etcd) take(ctx context.Context) (*connection, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.opened; c != nil {
		if !c.stale && time.Since(c.since) < renewAfter {
			c.users.Add(1)
			return c, nil
		}
		s.leave()
	}
	s.tried = true
	kept, err := s.open(ctx)
	if err != nil {
		return nil, err
	}
	s.opened = &connection{Services: kept, since: time.Now()}
	s.opened.users.Add(1)
	return s.opened, nil
}

func (s *Etcd) open(ctx context.Context) (*stored.Services, error) {
	c, err := s.connect(ctx)
	if err != nil {
		return nil, err
	}
	return &stored.Services{Etcd: c, Prefix: s.Spec.Prefix}, nil
}

func (s *Etcd) connect(ctx context.Context) (*etcd.Client, error) {
	if s.Relay != nil {
		return s.Relay.Open(ctx)
	}
	config, err := s.certificates(ctx)
	if err != nil {
		return nil, err
	}
	return etcd.Open(ctx, etcd.Config{Endpoints: s.Spec.Endpoints, TLS: config})
}

// Close ends the connection, and the pod that it went through.
func (s *Etcd) Close(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.leave()
	if s.Relay == nil || !s.tried {
		return nil
	}
	s.tried = false
	return etcdrelay.End(ctx, s.Relay.Cluster, s.Relay.Migration)
}

// leave ends the connection once nobody uses it any more.
func (s *Etcd) leave() {
	c := s.opened
	if c == nil {
		return
	}
	s.opened = nil
	go func() {
		c.users.Wait()
		_ = c.Etcd.Close() // nobody waits for it
	}()
}

func (s *Etcd) certificates(ctx context.Context) (*tls.Config, error) {
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

// Check implements Store. A Service that was changed since it was listed has its turn with what it
// is then.
func (s *Etcd) Check(ctx context.Context, all []*corev1.Service) (map[types.NamespacedName]error, error) {
	refused := map[types.NamespacedName]error{}
	err := s.use(ctx, func(kept *stored.Services) error {
		for i, err := range kept.Check(ctx, all) {
			switch {
			case stored.Permanent(err):
				refused[client.ObjectKeyFromObject(all[i])] = err
			case err != nil && !errors.Is(err, stored.ErrChanged):
				return err
			}
		}
		return nil
	})
	return refused, err
}

// Exchange implements Store, under the lock of ctx.
func (s *Etcd) Exchange(ctx context.Context, all ...stored.Exchange) (refused []error) {
	err := s.use(ctx, func(kept *stored.Services) error {
		refused = kept.Exchange(ctx, heldLease(ctx), all...)
		return errors.Join(refused...)
	})
	if refused == nil { // etcd was not reached
		refused = slices.Repeat([]error{err}, len(all))
	}
	return refused
}

// DeleteAddresses implements Store, under the lock of ctx.
func (s *Etcd) DeleteAddresses(ctx context.Context, versions map[string]string) (left map[string]string, err error) {
	left = versions
	err = s.use(ctx, func(kept *stored.Services) error {
		left, err = kept.DeleteAddresses(ctx, heldLease(ctx), versions)
		return err
	})
	return left, err
}

func heldLease(ctx context.Context) *stored.HeldLease {
	if lock := lease.Of(ctx); lock != nil {
		return &stored.HeldLease{Lease: lease.Key(), Holds: lock.Holds}
	}
	return nil
}
