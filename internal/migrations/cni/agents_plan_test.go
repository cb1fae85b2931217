package cni

import (
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// halfWay is in the middle of a switch in place, with agents or without.
func halfWay(t *testing.T, agents v1alpha1.AgentMode) switchover.Plans {
	t.Helper()
	archive, err := txtar.ParseFile("testdata/golden/in-place-half.txtar")
	if err != nil {
		t.Fatal(err)
	}
	in := map[string][]byte{}
	for _, f := range archive.Files {
		in[f.Name] = f.Data
	}
	plans, _ := planner(t, in)
	p := plans.Shared()
	config := &lossguard.AgentConfig{
		Cluster: p.Deps.Cluster, Migration: "m", Runnable: p.Deps.Image, Spec: v1alpha1.ProofSpec{Agents: agents},
	}
	p.Agents = config.New(len(p.Inventory.Nodes))
	return plans
}

// TestFirstNodeIsCleanedAlone: what finish removes from the first node is watched before it removes
// anything from another.
func TestFirstNodeIsCleanedAlone(t *testing.T) {
	p := halfWay(t, v1alpha1.AgentsEnabled)
	if n := len(p.Shared().Inventory.Nodes); n < 2 {
		t.Fatalf("%d nodes prove nothing", n)
	}
	var groups []engine.Group
	for _, phase := range p.Finish().Phases {
		groups = append(groups, phase.Groups...)
	}
	first := slices.IndexFunc(groups, func(g engine.Group) bool { return strings.HasPrefix(g.Steps[0].ID(), "clean/") })
	if first < 0 || len(groups) < first+4 || len(groups[first].Steps) != 1 {
		t.Fatalf("of %d groups, the one that begins to clean is %d", len(groups), first)
	}
	if _, watched := groups[first+1].Steps[0].(*lossguard.Steady); !watched {
		t.Errorf("%s follows the first node", groups[first+1].Steps[0].ID())
	}
}

// TestPlansWithAgents have no step twice: what takes agents away restores Pod Security, as the
// migration does for its own pods.
func TestPlansWithAgents(t *testing.T) {
	for name, agents := range map[string]v1alpha1.AgentMode{"with agents": v1alpha1.AgentsEnabled, "without": v1alpha1.AgentsDisabled} {
		t.Run(name, func(t *testing.T) {
			p := halfWay(t, agents)
			for _, plan := range []*engine.Plan{p.Apply(), p.Rollback(), p.Finish()} {
				if err := plan.Validate(); err != nil {
					t.Error(err)
				}
			}
			restored := 0
			for _, s := range p.Finish().Steps() {
				if s.ID() == "tidy/pod-security" {
					restored++
				}
			}
			if restored != 1 {
				t.Errorf("Pod Security is restored %d times", restored)
			}
		})
	}
}
