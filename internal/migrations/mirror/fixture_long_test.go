//go:build apiserver && programs && long

package mirror

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/testing/apitest"
)

func (f *fixture) rollback(ctx context.Context, r *engine.Runner) error {
	return f.job.Rollback(ctx, r)
}

func (f *fixture) finish(ctx context.Context, r *engine.Runner) error { return f.job.Finish(ctx, r) }

// leads fails the test unless both names lead there, with that time to live.
func (f *fixture) leads(to string, ttl time.Duration) {
	f.Helper()
	asking := &dnsrecords.Client{Port: f.dns.Port, Recursive: []string{f.dns.Resolver}}
	for _, name := range []string{"shop.sub.example.test.", "blog.sub.example.test."} {
		for _, a := range asking.Ask(f.Context(), []dnsrecords.NameServer{{Name: "primary", Addr: f.dns.Primary}}, name, v1alpha1.RecordA) {
			if a.Err != nil || !slices.Equal(a.Set.Values, []string{to}) || a.Set.TTL != ttl {
				f.Errorf("%s leads to %v for %s (%v), want %s for %s", name, a.Set.Values, a.Set.TTL, a.Err, to, ttl)
			}
		}
	}
}

func get[T client.Object](f *fixture, s *apitest.Server, o T, name string) T {
	f.Helper()
	f.must(s.Get(f.Context(), client.ObjectKey{Namespace: "shop", Name: name}, o))
	return o
}

// runsIn fails the test unless what must not run twice runs in one cluster and not in the other.
func (f *fixture) runsIn(here, not *apitest.Server) {
	f.Helper()
	for s, awake := range map[*apitest.Server]bool{here: true, not: false} {
		replicas := *get(f, s, &appsv1.Deployment{}, "mailer").Spec.Replicas
		suspended := ptr.Deref(get(f, s, &batchv1.CronJob{}, "nightly").Spec.Suspend, false)
		if (replicas == 1) != awake || suspended == awake {
			f.Errorf("mailer has %d replicas and nightly is suspended: %v; awake should be %v", replicas, suspended, awake)
		}
	}
}
