package servicecidr

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/overlapset"
)

func (j *Job) overlapImage() pull.Image {
	if j.Spec.Follower == v1alpha1.FollowerDisabled || j.Spec.Mode == v1alpha1.ModeExtend {
		return pull.Image{}
	}
	return j.image()
}

// image is what replumb's own pods run, whether there are to be agents or not.
func (j *Job) image() pull.Image {
	return j.Deps.ImageOf(&j.Spec.Common)
}

// Overlap is what keeps bridges in step between commands, whether it is to run or not.
func (j *Job) Overlap() *overlapset.Set {
	return &overlapset.Set{
		Cluster: j.Deps.Cluster, Migration: j.Spec.Name, Image: j.overlapImage(), Wait: j.agents().Wait(), Now: j.Deps.Now,
		Exclusive: migration.Exclusive(j.Deps.Cluster, j.Spec.Name, overlapset.Without),
	}
}

// checkOverlap refuses a follower that is asked for and that there is no image for.
func (j *Job) checkOverlap() error {
	if j.Spec.Follower != v1alpha1.FollowerEnabled || j.Spec.Mode == v1alpha1.ModeExtend || j.overlapImage().Name != "" {
		return nil
	}
	return &SpecError{
		Field: "spec.image", Problem: "is empty, and this build of replumb knows of no image of its own",
		Hint: "name an image that nodes can pull, or set spec.serviceCIDR.follower: Disabled",
	}
}

// addOverlap installs the overlap, or takes away the remains of an earlier one.
func (j *Job) addOverlap(ctx context.Context, p *Planner) error {
	set := j.Overlap()
	if set.Image.Name != "" {
		state, err := set.State(ctx)
		p.Overlap, p.OverlapWell = set, state == nil || state.Well()
		return err
	}
	there, err := set.There(ctx)
	if there {
		p.Leftovers = append(p.Leftovers, set.Remove()...)
	}
	return err
}

// overlap has bridges followed before there is one, and repairs the follower while there is any.
func (p *Planner) overlap() []engine.Group {
	if p.Left() == "" && (p.OverlapWell || p.Inventory.Counts().Bridged == 0) {
		return nil
	}
	return p.Overlap.Install()
}

func whileBridged(p *Planner, groups []engine.Group) []engine.Group {
	if c := p.Inventory.Counts(); c.Bridged+c.Moved == 0 {
		return nil
	}
	return groups
}
