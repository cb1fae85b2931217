package connectivity

import (
	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

var _ engine.Previewer = (*Step)(nil)

// Role implements engine.Cast: the pods are replumb's own, and do not outlive the step.
func (*Step) Role() engine.Role { return engine.RoleOwn }

// Preview implements engine.Previewer. The pods run on the nodes that are ready by then.
func (s *Step) Preview() ([]engine.Change, error) {
	in := func(name string) string { return v1alpha1.SystemNamespace + "/" + name + "*" }
	pods := s.pods()
	return []engine.Change{
		{Verb: "create", Object: "NetworkPolicy " + in(pods.policy(roleCall).GenerateName)},
		{Verb: "run", Object: "Pod " + in(pods.pod(RoleAnswer, "", nil).GenerateName)},
		{Verb: "run", Object: "Pod " + in(pods.pod(roleCall, "", nil).GenerateName)},
	}, nil
}
