//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

// TestKubeletsAreVouchedFor: who has no right to ask kubelets is asked what they name, and goes on
// when that was confirmed, for these addresses and no others.
func TestKubeletsAreVouchedFor(t *testing.T) {
	f := setup(t)
	f.node("a", "192.0.2.1")
	f.must(server.InstallCRD(t.Context()))
	m := f.job.Migration.DeepCopy()
	// A definition is served some time after it was written.
	f.must(wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return client.IgnoreAlreadyExists(server.Create(ctx, m)) == nil, nil
	}))
	operator, _ := migrationtest.Operator(quiet{t}, server, Roles().Of(access.View, access.Operate))
	k := &ranges.Kubelets{
		Cluster: operator, Migration: m.Name, Left: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Confirmation: "172.24.0.10",
	}
	for _, value := range []string{"", "172.24.0.11"} {
		f.annotate(m, value)
		want := "confirm it: kubectl annotate migrations.replumb.dev " + m.Name + " --overwrite replumb.dev/kubelets=172.24.0.10"
		if err := k.Holds(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %q: %v", value, err)
		}
	}
	f.annotate(m, "172.24.0.10")
	f.must(k.Holds(t.Context()))
}

// quiet lets requests be denied: that they are is what the test is about.
type quiet struct{ *testing.T }

func (quiet) Errorf(string, ...any) {}

func (f *fixture) annotate(m *v1alpha1.Migration, value string) {
	f.Helper()
	was := m.DeepCopy()
	m.Annotations = map[string]string{v1alpha1.AnnotationKubelets: value}
	f.must(server.Patch(f.Context(), m, client.MergeFrom(was)))
}

// TestRelayRights: who has the role may make the pod, begin processes in it and delete it, and who
// has not may do none of that.
func TestRelayRights(t *testing.T) {
	f := setup(t, throughKubeadm)
	f.apiServerOfKubeadm("cp1")
	reach := func(purposes ...access.Purpose) (err error) {
		may, _ := migrationtest.Operator(quiet{t}, server, Roles().Of(purposes...))
		server.Namespace(t, v1alpha1.SystemNamespace)
		r := &etcdrelay.Relay{Cluster: may, Migration: "m", Image: pull.Image{Name: "replumb"}}
		if _, err = r.Open(t.Context()); f.relay() == nil {
			return err
		}
		p := f.relay()
		p.Status.Phase = corev1.PodRunning
		f.must(server.Status().Update(t.Context(), p))
		_, err = r.Open(t.Context())
		return errors.Join(err, etcdrelay.End(t.Context(), may, "m"))
	}
	if err := reach(access.View, access.Operate); err == nil || !strings.Contains(err.Error(), `cannot create resource "pods"`) {
		t.Errorf("without the role: %v", err)
	}
	err := reach(access.View, access.Operate, access.KubeadmEtcd)
	if err == nil || strings.Contains(err.Error(), "forbidden") || !strings.Contains(err.Error(), "through pod etcd-relay on node cp1") {
		t.Errorf("with the role: %v", err)
	}
}
