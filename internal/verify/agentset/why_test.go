//go:build apiserver && long

package agentset

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestWhy: rights that were taken away are reported, rather than what follows from that.
func TestWhy(t *testing.T) {
	f := setup(t)
	f.migration("m", v1alpha1.PhaseApplying)
	_, err := f.install(f.set)
	f.Must(err)
	reason := func() string { return f.set.Why(t.Context(), "a", v1alpha1.FromHost).Reason }
	if got := reason(); !strings.HasSuffix(got, "runs, but reports no more") {
		t.Errorf("without a cause: %s", got)
	}
	binding := &rbacv1.ClusterRoleBinding{}
	f.get(binding, hostAccess)
	f.Must(server.Delete(t.Context(), binding))
	if got := reason(); !strings.HasPrefix(got, "ClusterRoleBinding replumb-agent is missing: ") {
		t.Errorf("without rights: %s", got)
	}
	_, err = f.install(f.set)
	f.Must(err)
	role := &rbacv1.ClusterRole{}
	f.get(role, hostAccess)
	role.Rules = role.Rules[1:]
	f.Must(server.Update(t.Context(), role))
	if got := reason(); !strings.HasPrefix(got, "ClusterRole replumb-agent was changed: ") {
		t.Errorf("with other rights: %s", got)
	}
}
