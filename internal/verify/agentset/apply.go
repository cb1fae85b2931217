package agentset

import (
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/migration/incluster"
)

// without is what there is to do where agents are another migration's.
const without = "do without agents: spec.proof.agents: Disabled"

// apply makes objects of the agents.
func (s *Set) apply(id, title string, build func(servers []string) ([]client.Object, error)) *incluster.ApplyStep {
	return &incluster.ApplyStep{
		Cluster: s.Cluster, Migration: s.Migration, Name: id, About: title, Build: build, Without: without,
	}
}
