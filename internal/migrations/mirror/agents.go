package mirror

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// ofSource says whose nodes agents watch from.
const ofSource = " of the source"

func (j *Job) agents() *lossguard.AgentConfig {
	return j.AgentsOf(j.Tools.Deps, j.Spec.Name, &j.Spec.Common)
}

// watchedBy makes the agents on every node of the source, and removes what an earlier run left.
func (j *Job) watchedBy(ctx context.Context, p *Planner, in *Input) (err error) {
	if in.Nodes, err = cluster.List[corev1.Node](ctx, j.Tools.Cluster, &corev1.NodeList{}); err != nil {
		return err
	}
	if in.AbsentSecrets, err = j.absentSecrets(ctx, j.Tools.Cluster, j.to); err != nil {
		return err
	}
	in.Image = j.agents().Image().Name
	p.Agents = j.agents().New(len(in.Nodes))
	p.Remains, err = j.agents().Left(ctx)
	return err
}

func (p *Planner) watch() []engine.Group {
	if p.Inventory.Serving() == v1alpha1.ServingTarget {
		return nil
	}
	return p.Agents.Install()
}

// watchBack puts agents on every node if they can be there soon.
func (p *Planner) watchBack() []engine.Group {
	if p.Inventory.Serving() == v1alpha1.ServingSource {
		return nil
	}
	return p.Agents.InstallIfPossible()
}

func agentChecks() []findings.Check[Input] {
	see := func(in Input) (string, []corev1.Node) { return in.Image, in.Nodes }
	return append([]findings.Check[Input]{
		pull.Check("RP3214", func(in Input) []findings.Result { return in.AbsentSecrets }),
	}, lossguard.Checks("RP3215", "RP3216", ofSource, see)...)
}
