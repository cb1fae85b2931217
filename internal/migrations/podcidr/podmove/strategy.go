package podmove

import (
	"net/netip"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
)

// Strategy is how pods move: by pools of Calico, or by the ranges of Nodes.
type Strategy interface {
	Shared() *Inventory
	// Roles are needed beside those that both strategies need.
	Roles() access.Roles
	// Check runs the checks that have something to say of this cluster.
	Check(Facts) findings.Findings
	Plans(*Planner) Plans
	// Leaving says which pods have an address that a direction leaves, at the time of the plan.
	Leaving(d engine.Direction, now time.Time) rollout.Changes
	// Switched reports whether no new pod gets an old address any more.
	Switched() bool
	// Overlaid reports whether packets are lost while addresses of tunnels change.
	Overlaid() bool
	// KeepsTunnels reports whether pods of replumb keep old addresses of tunnels.
	KeepsTunnels() bool
	Ranges() []MovedRange
}

// Plans are the plans of one look at the cluster.
type Plans interface {
	migration.Plans
	// Shared is what planners of both strategies have.
	Shared() *Planner
	Kept() []rollout.Reported
}

// Position says from which of the two ranges new pods get their addresses.
type Position string

// The places.
const (
	PositionOld  Position = "old"
	PositionBoth Position = "both"
	PositionNew  Position = "new"
)

// MovedRange is one that another takes over from.
type MovedRange struct {
	From, To netip.Prefix
	Place    Position
}
