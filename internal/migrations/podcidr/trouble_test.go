//go:build apiserver

package podcidr

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/network/calico"
)

func TestCanaryFindsTheTargetUnreachable(t *testing.T) {
	f := setup(t)
	f.Deployment("web", 2)
	f.set(&f.failing, "yes")
	f.Fails(f.apply(), "step canary", "a pod tried out on node")
	f.in(oldRange, "web", 2)
	old := calico.Empty("IPPool", "default")
	f.Must(server.Get(t.Context(), client.ObjectKeyFromObject(old), old))
	p, err := calico.ReadPool(old)
	f.Must(err)
	if p.Spec.Disabled {
		t.Error("the old pool is disabled though the target was not proven")
	}
	f.set(&f.failing, "")
	f.Must(f.apply())
	f.in(newRange, "web", 2)
}

func TestPoolOfThatNameIsAnother(t *testing.T) {
	f := setup(t, func(m *v1alpha1.Migration) { m.Spec.PodCIDR.From = []string{oldRange} })
	f.Deployment("web", 2)
	f.pool(newPool, "10.9.0.0/24")
	f.Fails(f.apply(), "ippool "+newPool+" is of 10.9.0.0/24, not of "+newRange)
	f.in(oldRange, "web", 2)
}
