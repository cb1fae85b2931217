package connectivity

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

var _ engine.Previewer = (*Step)(nil)

// Role is RoleOwn: the pods are replumb's own, and do not outlive the step.
func (*Step) Role() engine.StepRole { return engine.RoleOwn }

func (s *Step) Preview() ([]engine.Change, error) { return s.pods().Changes(roleCall), nil }

// Changes are what Serve and Start make, for pods that ask in a role. They run on the nodes that
// are ready by then, and go again.
func (p *Pods) Changes(asking string) []engine.Change {
	in := func(name string) string { return v1alpha1.SystemNamespace + "/" + name + "*" }
	return []engine.Change{
		{Verb: "create", Object: "NetworkPolicy " + in(p.policy(asking).GenerateName)},
		{Verb: "run", Object: "Pod " + in(p.pod(RoleAnswer, "", nil).GenerateName)},
		{Verb: "run", Object: "Pod " + in(p.pod(asking, "", nil).GenerateName)},
	}
}
