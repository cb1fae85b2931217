//go:build apiserver && programs

package mirror

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec"
)

// recorded is the Migration of the cluster, changed as in an edited file.
func (f *fixture) recorded(change func(*v1alpha1.MirrorSpec)) *v1alpha1.Migration {
	f.Helper()
	m, err := migration.Get(f.Context(), f.source, "m")
	f.must(err)
	change(m.Spec.Mirror)
	return m
}

// record fails the test unless a name leads there, for that long.
func (f *fixture) record(name, to string, ttl time.Duration) {
	f.Helper()
	asking := &dnsrecords.Client{Port: f.dns.Port, Recursive: []string{f.dns.Resolver}}
	for _, a := range asking.Ask(f.Context(), []dnsrecords.NameServer{{Name: "primary", Addr: f.dns.Primary}}, name, v1alpha1.RecordA) {
		if a.Err != nil || !slices.Equal(a.Set.Values, []string{to}) || a.Set.TTL != ttl {
			f.Errorf("%s leads to %v for %s (%v), want %s for %s", name, a.Set.Values, a.Set.TTL, a.Err, to, ttl)
		}
	}
}

// TestOptionsChangeUntilNamesLead: what was wrong is corrected in the file, and applied, until the
// first name leads to the target; what it had done before is taken back. After that it is refused.
func TestOptionsChangeUntilNamesLead(t *testing.T) {
	f := setup(t)
	f.job.Until = "lower"
	f.must(f.apply(t.Context(), f.runner))
	get := client.ObjectKey{Namespace: "shop", Name: "settings"}
	f.must(f.target.Get(t.Context(), get, &corev1.ConfigMap{}))
	f.record("blog.sub.example.test.", sourceAt, time.Second)

	f.with(f.recorded(func(m *v1alpha1.MirrorSpec) {
		m.Copy.Kinds.Exclude = []string{"configmaps"}
		m.Copy.NodePorts = v1alpha1.NodePortsStrip
		m.Redirect.Names = []v1alpha1.RedirectName{{Name: "shop.sub.example.test"}}
	}))
	f.must(f.apply(t.Context(), f.runner))
	if now := f.recorded(func(*v1alpha1.MirrorSpec) {}); now.Spec.Mirror.Copy.NodePorts != v1alpha1.NodePortsStrip ||
		now.Status.Mirror.Serving != v1alpha1.ServingTarget {
		t.Errorf("the Migration has %v, and %s serves", now.Spec.Mirror.Copy.NodePorts, now.Status.Mirror.Serving)
	}
	if err := f.target.Get(t.Context(), get, &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
		t.Errorf("the copy of what is left out by now: %v", err)
	}
	f.record("shop.sub.example.test.", targetAt, time.Second)
	f.record("blog.sub.example.test.", sourceAt, 3*time.Second)

	late := f.recorded(func(m *v1alpha1.MirrorSpec) { m.Copy.NodePorts = v1alpha1.NodePortsKeep })
	if err := f.source.Update(t.Context(), late); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.mirror.copy.nodePorts") {
		t.Errorf("an API server takes a change while the target serves: %v", err)
	}
	f.with(late)
	var wrong *spec.Error
	if err := f.apply(t.Context(), f.runner); !errors.As(err, &wrong) || wrong.Field != "spec.mirror.copy.nodePorts" ||
		!strings.Contains(wrong.Hint, "replumb rollback m") {
		t.Errorf("a run takes a change while the target serves: %v", err)
	}
}

// TestChangeDuringTheRun: an option that is changed while a run makes the mirror by another one
// ends that run before any name moves.
func TestChangeDuringTheRun(t *testing.T) {
	f := setup(t)
	f.starts = func(step string) {
		if step != switchBegins {
			return
		}
		f.starts = nil
		f.must(f.source.Update(t.Context(), f.recorded(func(m *v1alpha1.MirrorSpec) { m.Copy.NodePorts = v1alpha1.NodePortsStrip })))
	}
	var changed *SpecChangedError
	if err := f.apply(t.Context(), f.runner); !errors.As(err, &changed) || changed.Change.Field != "spec.mirror.copy.nodePorts" {
		t.Errorf("the run ended with %v", err)
	}
	if s := f.status().Mirror.Serving; s != v1alpha1.ServingSource {
		t.Errorf("%s serves", s)
	}
	f.record("shop.sub.example.test.", sourceAt, time.Second)
	f.must(f.run(0, f.apply))
	if s := f.status().Mirror.Serving; s != v1alpha1.ServingTarget {
		t.Errorf("%s serves after another run", s)
	}
}
