package servicecidr

import (
	"context"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// unfit plans nothing, for a cluster that has no ServiceCIDRs: where its Services would go there is no saying. Of the checks it makes those
// whose answer does not depend on it.
func (j *Job) unfit(ctx context.Context) (*Planner, error) {
	v, err := j.Tools.Cluster.ServerVersion(ctx)
	if err != nil {
		return nil, err
	}
	base, err := j.Base(ctx, j.Tools.Tools)
	if err != nil {
		return nil, err
	}
	base.Findings = findings.Run(unfitChecks(), Input{Snapshot: &cluster.Snapshot{Version: v}, Live: cluster.Live{Access: j.Access}})
	return &Planner{Base: base, Survey: &Survey{Spec: j.Spec}, Unfit: true}, nil
}

// unfitChecks are those of whether there are ServiceCIDRs, and of the rights, which are the same without.
func unfitChecks() []findings.Check[Input] {
	return findings.Group("Cluster", fitnessChecks()[:2]...)
}
