//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/exchange"
	"github.com/replumb/replumb/internal/testing/crash"
)

// TestRewrittenIsTheAPIServersOwn: a Service that moved by etcd is one like any other for the API
// server. It takes changes of it, and when it is deleted gives its address back.
func TestRewrittenIsTheAPIServersOwn(t *testing.T) {
	f := setup(t, byEtcd)
	f.balanced("balanced", "10.96.3.1")
	f.apply()
	f.must(f.finish())
	is := f.get("balanced")
	if is.Spec.ClusterIP != "172.24.3.1" || f.owner("10.96.3.1") != "" {
		t.Errorf("it is at %s, and its old address belongs to %q", is.Spec.ClusterIP, f.owner("10.96.3.1"))
	}
	is.Spec.Ports[0].Port, is.Finalizers = 8080, nil
	f.must(server.Update(t.Context(), is))
	f.must(server.Delete(t.Context(), is))
	if by := f.owner("172.24.3.1"); by != "" {
		t.Errorf("its address still belongs to %s", by)
	}
}

// doomed is a process that ends at one of its writes to etcd about a Service of the shop: right
// before it, or right after.
type doomed struct {
	exchange.Store
	at    int
	after bool

	writes int
}

func (d *doomed) Exchange(ctx context.Context, all ...stored.Exchange) []error {
	if all[0].Service.Namespace != "shop" { // the canary's
		return d.Store.Exchange(ctx, all...)
	}
	if d.writes++; d.writes < d.at {
		return d.Store.Exchange(ctx, all...)
	}
	refused := slices.Repeat([]error{crash.ErrKilled}, len(all))
	if d.after {
		for i, err := range d.Store.Exchange(ctx, all...) {
			refused[i] = errors.Join(err, refused[i])
		}
	}
	return refused
}

// TestRewriteKilled at each of its writes to etcd, there and back: with a bridge, and where a
// Service keeps its old address itself, whose target is reserved first.
func TestRewriteKilled(t *testing.T) {
	for name, tt := range map[string]struct {
		at    int
		after bool
	}{"before the first": {1, false}, "after the first": {1, true}, "after the second": {2, true}, "after the third": {3, true}} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, allByEtcd)
			all := []*corev1.Service{f.balanced("balanced", "10.96.3.1"), f.service("plain", at("10.96.3.2"))}
			kill := func(act func() error) {
				f.job.Deps.Store = &doomed{Store: &exchange.Etcd{Spec: f.job.Spec.Store}, at: tt.at, after: tt.after}
				if err := act(); !errors.Is(err, crash.ErrKilled) {
					t.Fatalf("the run ended with %v", err)
				}
				f.job.Deps.Store = nil
				f.again()
			}
			kill(func() error {
				_, err := f.job.Apply(t.Context(), f.runner)
				return err
			})
			f.apply()
			for _, was := range all {
				f.moved(was, f.get(was.Name))
			}
			kill(f.rollback)
			f.must(f.rollback())
			for _, was := range all {
				f.sameButAddress(was, f.get(was.Name))
			}
			f.nothingLeft()
		})
	}
}

func TestRewriteKilledAfterEveryWrite(t *testing.T) {
	var was *corev1.Service
	begin := func() *fixture {
		f := setup(t, byEtcd)
		f.balanced("balanced", "10.96.3.1")
		f.unbind("balanced") // the next run begins with an empty cluster
		was = f.get("balanced")
		return f
	}
	apply := func(f *fixture) error {
		_, err := f.job.Apply(t.Context(), f.runner)
		return err
	}
	everyWrite(t, 12, begin, apply, func(f *fixture, n int) {
		if n%2 == 1 {
			f.apply()
			f.moved(was, f.get("balanced"))
		} else if f.again() != nil {
			f.must(f.rollback())
			f.sameButAddress(was, f.get("balanced"))
			f.nothingLeft()
		}
	})
}

// TestRewriteIsRefused before anything is written, where etcd is not reached or is not known to be
// the cluster's.
func TestRewriteIsRefused(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1alpha1.StoreSpec)
		want   string
	}{
		"no etcd there": {func(s *v1alpha1.StoreSpec) { s.Endpoints = []string{"http://127.0.0.1:9"} }, "connection refused"},
		"other prefix":  {func(s *v1alpha1.StoreSpec) { s.Prefix = "/elsewhere" }, "there is nothing at /elsewhere/services/specs/shop/balanced"},
		"no Secret": {
			func(s *v1alpha1.StoreSpec) { s.Endpoints, s.Secret = []string{"https://127.0.0.1:9"}, "etcd" },
			"secret replumb-system/etcd is not there",
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := setup(t, byEtcd, func(m *v1alpha1.Migration) { tt.change(m.Spec.ServiceCIDR.Etcd) })
			was := f.balanced("balanced", "10.96.3.1")
			f.blocked("RP1720", tt.want)
			if is := f.get("balanced"); is.ResourceVersion != was.ResourceVersion {
				t.Error("it was written")
			}
		})
	}
	t.Run("encoded otherwise", func(t *testing.T) {
		f := setup(t, byEtcd)
		was := f.balanced("balanced", "10.96.3.1")
		f.job.Deps.Store = refusing{}
		f.blocked("RP1720", "encrypted at rest")
		if is := f.get("balanced"); is.ResourceVersion != was.ResourceVersion {
			t.Error("it was written")
		}
	})
}

// TestEncryptionIsFoundByWriting: encryption at rest was turned on, and no Service was written
// since. Nothing is frozen and no Service is touched when that is found, and nothing stays.
func TestEncryptionIsFoundByWriting(t *testing.T) {
	f := setup(t, byEtcd)
	was := f.balanced("balanced", "10.96.3.1")
	f.job.Deps.Store = encrypting{&exchange.Etcd{Spec: f.job.Migration.Spec.ServiceCIDR.Etcd, Client: server}}
	_, err := f.job.Apply(t.Context(), f.runner)
	if err == nil || !strings.Contains(err.Error(), "encrypted at rest") || fault.Advice(err) == "" {
		t.Fatalf("got %v", err)
	}
	if is := f.get("balanced"); is.ResourceVersion != was.ResourceVersion {
		t.Error("it was written")
	}
	services := &corev1.ServiceList{}
	f.must(f.job.Deps.Cluster.List(t.Context(), services, client.InNamespace(v1alpha1.SystemNamespace)))
	if len(services.Items) > 0 {
		t.Errorf("%d Services of replumb stay", len(services.Items))
	}
}

// encrypting is an etcd in which all is encrypted that is written now.
type encrypting struct{ exchange.Store }

func (e encrypting) Check(ctx context.Context, all []*corev1.Service) (map[types.NamespacedName]error, error) {
	if all[0].Namespace == v1alpha1.SystemNamespace {
		return refusing{}.Check(ctx, all)
	}
	return e.Store.Check(ctx, all)
}

// refusing is an etcd in which all is encrypted.
type refusing struct{ exchange.Store }

func (refusing) Check(_ context.Context, all []*corev1.Service) (map[types.NamespacedName]error, error) {
	_, err := stored.Decode([]byte("k8s:enc:aescbc:v1:key1:"))
	return map[types.NamespacedName]error{client.ObjectKeyFromObject(all[0]): err}, nil
}

// blocked fails unless apply is refused by a finding that says so.
func (f *fixture) blocked(code, says string) {
	f.Helper()
	_, err := f.job.Apply(f.Context(), f.runner)
	p, examined := f.job.Examine(f.Context())
	f.must(examined)
	for _, x := range p.Findings.Blocking() {
		if x.Code == code && strings.Contains(x.Message, says) && err != nil {
			return
		}
	}
	f.Errorf("apply ended with %v, want it blocked by %s %q; blocking are %+v", err, code, says, p.Findings.Blocking())
}
