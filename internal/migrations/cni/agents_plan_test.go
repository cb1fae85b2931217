package cni

import (
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// TestPlansWithAgents have no step twice: what takes agents away restores Pod Security, as the migration does for its own pods.
func TestPlansWithAgents(t *testing.T) {
	archive, err := txtar.ParseFile("testdata/golden/in-place-half.txtar")
	if err != nil {
		t.Fatal(err)
	}
	in := map[string][]byte{}
	for _, f := range archive.Files {
		in[f.Name] = f.Data
	}
	for name, agents := range map[string]v1alpha1.AgentMode{"with agents": v1alpha1.AgentsEnabled, "without": v1alpha1.AgentsDisabled} {
		t.Run(name, func(t *testing.T) {
			p, _ := planner(t, in)
			config := &lossguard.AgentConfig{
				Cluster:   p.Tools.Cluster,
				Migration: "m",
				Own:       p.Tools.Image,
				Spec:      v1alpha1.ProofSpec{Agents: agents},
			}
			p.Agents = config.New(len(p.Survey.Nodes))
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
