package podmove

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec/tier"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Parallel is how many steps of one group run at once.
const Parallel = 32

// Planner is what the planners of both strategies have. They embed it.
type Planner struct {
	migration.Base
	Inventory *Inventory
	Rules     tier.Rules
	Agents    *lossguard.Agents
	Remains   []engine.Group
	// Proven says that new pods were seen with new addresses. OnProof, if set, is called then.
	Proven  bool
	OnProof func()
}

func (p *Planner) Shared() *Planner { return p }

func (p *Planner) Counts() v1alpha1.Counts { return p.Inventory.Counts() }

// StillOld says how much of what is named has to be restarted yet; nothing, if that is nothing.
func StillOld(names []string) string {
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf("%d still have old addresses, the first is %s", len(names), names[0])
}

func (p *Planner) Rollout() rollout.Deps {
	return rollout.Deps{
		Client: p.Tools.Client(), Timeout: p.Inventory.Spec.Roll.Timeout.Duration, Now: p.Tools.Now,
		TakenBack: p.Tools.NoteTakenBack(p.Inventory.Spec.Name),
	}
}

// Record writes down the migration and backs up what is about to be changed for the first time.
func (p *Planner) Record(originals []client.Object) []engine.Group {
	return p.Secure(migration.Securing{Originals: originals})
}

// Watch puts agents on every node, unless apply is through and has nothing left to do.
func (p *Planner) Watch(through bool) []engine.Group {
	if p.Migration.Status.Phase == v1alpha1.PhaseMoved && through {
		return nil
	}
	return p.Agents.Install()
}

func (p *Planner) WatchFinish() []engine.Group { return p.Agents.Install() }

func (p *Planner) WatchBack() []engine.Group { return p.Agents.InstallIfPossible() }

// Steady waits until every probe is answered from every node again; on the way back for a while.
func (p *Planner) Steady(d engine.Direction, after string) []engine.Group {
	if d == engine.Backward {
		return p.Agents.BestEffort(p.Agents.Steady(after))
	}
	return p.Agents.Steady(after)
}

func (p *Planner) Prepare(switched bool) []engine.Group {
	if p.Arrived(switched) {
		return nil
	}
	return engine.AtOnce(Parallel, "", p.Inventory.Spares.Up(p.Tools.Cluster)...)
}

func (p *Planner) ScaleBack() engine.Step { return spare.Back(p.Tools.Cluster, p.Inventory.Spec.Name) }

// Arrived reports whether no pod has an old address, and none gets one.
func (p *Planner) Arrived(switched bool) bool {
	return switched && len(p.Inventory.PodsIn(p.Inventory.Spec.From)) == 0
}

func (p *Planner) Tries() bool { return p.Inventory.Spec.Canary.Mode == v1alpha1.PodCanaryRun }

// Trial has pods on every node try out addresses of the targets.
func (p *Planner) Trial(id, title string) *connectivity.Step {
	return &connectivity.Step{
		Cluster: p.Tools.Cluster, Migration: p.Inventory.Spec.Name, Name: id, About: title, Image: p.Image(),
		Within: p.Inventory.Spec.To, Targets: p.Inventory.Spec.Canary.Targets,
	}
}

func (p *Planner) Image() pull.Image {
	return p.Tools.ImageOf(&p.Inventory.Spec.Common)
}

// VerifyVacant proves that nothing has an address of the ranges.
func (p *Planner) VerifyVacant(ranges []netip.Prefix) []engine.Group {
	if len(ranges) == 0 {
		return nil
	}
	c, s := p.Tools.Cluster, p.Inventory.Spec
	return engine.InOrder(&engine.Wait{
		Name: "verify", About: fmt.Sprintf("Verify that addresses of %v are unused", ranges),
		For: func(ctx context.Context) error {
			now, err := Occupants(ctx, c, s)
			if err != nil {
				return err
			}
			return now.Vacant(ranges)
		},
	})
}

func (p *Planner) Note(after string) engine.Step {
	c, s := p.Tools.Cluster, p.Inventory.Spec
	return &engine.Observed[v1alpha1.Counts]{
		Name: "note/" + after, About: "Record that " + after + " has moved", As: engine.RoleOwn,
		Look: func(ctx context.Context) (engine.State, v1alpha1.Counts, error) { // an earlier note says nothing of now
			now, err := Occupants(ctx, c, s)
			if err != nil {
				return engine.Unknown, v1alpha1.Counts{}, err
			}
			return engine.Pending, now.Counts(), nil
		},
		Write: func(ctx context.Context, counts v1alpha1.Counts) error {
			return migration.UpdateStatus(ctx, c, s.Name, func(st *v1alpha1.MigrationStatus) { st.Counts = counts })
		},
		Proof:   func(context.Context) error { return nil },
		Changes: migration.StatusChange(s.Name, map[string]any{"counts": "of pods in the old and in the new ranges"}),
	}
}

// Tidy removes agents, further leavings of the strategy, and what replumb keeps for itself.
func (p *Planner) Tidy(further ...engine.Step) []engine.Group {
	return slices.Concat(p.Agents.Dismiss(), p.Remains, engine.InOrder(slices.Concat(further, p.Thaw(), p.Forget(migration.Sweep{}))...))
}
