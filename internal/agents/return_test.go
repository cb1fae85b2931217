package agents

import (
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// TestReturnWaitsForNobody: who goes back goes back also without agents, and says so.
func TestReturnWaitsForNobody(t *testing.T) {
	f := setup(t)
	f.change(func() { f.mute = []string{"b"} })
	f.set.Wait = 4 * time.Second
	plan := &engine.Plan{Name: "m", Phases: []engine.Phase{{Name: Phase, Groups: f.set.InstallForReturn()}}}
	f.must(f.runner.Run(t.Context(), plan))
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.ContainsFunc(f.events, func(e engine.Event) bool {
		return e.Step == "agents/reporting" && e.Kind == engine.StepDone && strings.HasPrefix(e.Error, "going on without: node b: pod ")
	}) {
		t.Errorf("nobody tells of node b: %+v", f.events)
	}
}

// TestReason: rights that were taken away are told of, rather than what follows from that.
func TestReason(t *testing.T) {
	f := setup(t)
	f.migration("m", v1alpha1.PhaseApplying)
	_, err := f.install(f.set)
	f.must(err)
	if got := f.set.Reason(t.Context(), "a"); got != "their pods run, and report no more" {
		t.Errorf("without a cause: %s", got)
	}
	binding := &rbacv1.ClusterRoleBinding{}
	f.get(binding, access)
	f.must(server.Delete(t.Context(), binding))
	if got := f.set.Reason(t.Context(), "a"); !strings.HasPrefix(got, "ClusterRoleBinding replumb-agent is missing: ") {
		t.Errorf("without rights: %s", got)
	}
	_, err = f.install(f.set)
	f.must(err)
	role := &rbacv1.ClusterRole{}
	f.get(role, access)
	role.Rules = role.Rules[1:]
	f.must(server.Update(t.Context(), role))
	if got := f.set.Reason(t.Context(), "a"); !strings.HasPrefix(got, "ClusterRole replumb-agent was changed: ") {
		t.Errorf("with other rights: %s", got)
	}
}
