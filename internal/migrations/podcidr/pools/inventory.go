// Package pools moves pods to other pools of Calico: it adds pools, disables the old ones and
// restarts pods. plan.go lists the phases.
package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/spec"
)

// Inventory is what is found in a cluster with pools.
type Inventory struct {
	podmove.Inventory
	Surroundings
	// Calico is its data.
	Calico *calico.State
	// Moves are the pools, in the order of the targets.
	Moves []PoolMove
}

var _ podmove.Strategy = (*Inventory)(nil)

// Surroundings are what else decides which pool a pod gets its address from.
type Surroundings struct {
	// Namespaces are the annotations of each.
	Namespaces map[string]map[string]string
	// Installations are what operators keep up.
	Installations []Installation
	// Unreservable says that this Calico knows no IPReservations, which came with v3.22.
	Unreservable bool
}

// Installation is a Tigera operator's (operator.tigera.io/v1, spec.calicoNetwork.ipPools).
type Installation struct {
	Name  string
	Pools []InstalledPool
}

// InstalledPool is a pool that an operator keeps up.
type InstalledPool struct {
	CIDR                  string `json:"cidr"`
	DisableNewAllocations bool   `json:"disableNewAllocations,omitempty"`
}

func (i *Installation) pool(cidr netip.Prefix) (InstalledPool, bool) {
	for _, p := range i.Pools {
		if p.CIDR == cidr.String() {
			return p, true
		}
	}
	return InstalledPool{}, false
}

// PoolMove is one pool that another one takes over from.
type PoolMove struct {
	// From is the range that is emptied, Old its pool; nil, if there is none any more.
	From netip.Prefix
	Old  *calico.Pool
	// To is the target, New its pool; nil, if there is none yet.
	To  netip.Prefix
	New *calico.Pool
}

// Name of the target's pool. It stays when the migration is over, so it does not say who made it.
func (m *PoolMove) Name() string {
	if m.New != nil {
		return m.New.Name
	}
	return "pods-" + strings.NewReplacer(".", "-", "/", "-", ":", "-").Replace(m.To.String())
}

// selector of the target's pool. One that is not there yet is made like the old one.
func (m *PoolMove) selector() string {
	switch {
	case m.New != nil:
		return m.New.Spec.NodeSelector
	case m.Old != nil:
		return m.Old.Spec.NodeSelector
	}
	return ""
}

// selects reports whether nodes like this one get addresses of the target.
func (m *PoolMove) selects(node *corev1.Node) (bool, error) {
	return calico.Selects(m.selector(), node.Labels)
}

// left is the pool that direction d leaves; nil, if there is none.
func (m *PoolMove) left(d engine.Direction) *calico.Pool {
	if d == engine.Backward {
		return m.New
	}
	return m.Old
}

// place says from which of the two pools new pods get their addresses.
func (m *PoolMove) place() podmove.Position {
	gives := func(p *calico.Pool) bool { return p != nil && !p.Spec.Disabled }
	switch {
	case gives(m.Old) && gives(m.New):
		return podmove.PositionBoth
	case gives(m.Old):
		return podmove.PositionOld
	}
	return podmove.PositionNew
}

// disabledAt is when replumb disabled a pool, or found it disabled; zero, if it did neither.
func disabledAt(p *calico.Pool) time.Time {
	if p == nil || !p.Spec.Disabled {
		return time.Time{}
	}
	at, err := time.Parse(time.RFC3339Nano, p.Object.GetAnnotations()[v1alpha1.AnnotationDisabledAt])
	if err != nil {
		return time.Time{}
	}
	return at
}

// New pairs the pools with the targets. It fails with a *spec.Error if that cannot be done.
func New(shared *podmove.Inventory, state *calico.State) (*Inventory, error) {
	from, err := resolve(shared.Spec, state)
	if err != nil {
		return nil, err
	}
	s := &Inventory{Inventory: *shared, Calico: state}
	s.Spec.From = from
	for i, to := range s.Spec.To {
		s.Moves = append(s.Moves, PoolMove{From: from[i], Old: poolAt(state.Pools, from[i]), To: to, New: poolAt(state.Pools, to)})
	}
	return s, nil
}

// resolve finds the ranges to be emptied: named ones, or all enabled pools of pods.
func resolve(s podmove.Spec, state *calico.State) ([]netip.Prefix, error) {
	if len(s.From) > 0 {
		return s.From, nil
	}
	var found []netip.Prefix
	for i := range state.Pools {
		p := &state.Pools[i]
		if p.CIDR.Addr().Is4() && p.ForPods() && !p.Spec.Disabled && !slices.Contains(s.To, p.CIDR) {
			found = append(found, p.CIDR)
		}
	}
	if len(found) != len(s.To) {
		return nil, &spec.Error{
			Field:   podmove.Field + ".from",
			Problem: fmt.Sprintf("is empty, and there are %d enabled pools %v for %d targets", len(found), found, len(s.To)),
			Hint:    "name in from the range of the pool that each target takes over from",
		}
	}
	return found, nil
}

func poolAt(pools []calico.Pool, cidr netip.Prefix) *calico.Pool {
	for i := range pools {
		if pools[i].CIDR == cidr {
			return &pools[i]
		}
	}
	return nil
}

// Roles implements podmove.Strategy: there are no more than all migrations of pods need.
func (*Inventory) Roles() access.Roles { return nil }

// Leaving ends with the moment when the last pool was disabled.
func (s *Inventory) Leaving(d engine.Direction, now time.Time) rollout.Changes {
	c := s.Inventory.Leaving(d, now)
	var closed []time.Time
	for i := range s.Moves {
		if pool := s.Moves[i].left(d); pool != nil {
			closed = append(closed, disabledAt(pool))
		}
	}
	if len(closed) > 0 && !slices.ContainsFunc(closed, time.Time.IsZero) {
		c.AddressesUntil = slices.MaxFunc(closed, time.Time.Compare)
	}
	return c
}

func (s *Inventory) Switched() bool { return s.closed(engine.Forward) }

// closed reports whether no pool gives addresses that direction d leaves.
func (s *Inventory) closed(d engine.Direction) bool {
	return !slices.ContainsFunc(s.Moves, func(m PoolMove) bool { return m.left(d) != nil && !m.left(d).Spec.Disabled })
}

// Overlaid implements podmove.Strategy: pods of different nodes reach each other through tunnels.
func (s *Inventory) Overlaid() bool {
	return slices.ContainsFunc(s.Moves, func(m PoolMove) bool {
		return m.Old != nil && m.Old.Overlay() != "" || m.New != nil && m.New.Overlay() != ""
	})
}

func (s *Inventory) KeepsTunnels() bool {
	return s.Spec.Tunnels == v1alpha1.TunnelsHold && s.Overlaid()
}

// MovesTunnels reports whether VXLAN tunnels get their addresses ahead, with routes beside them.
// Routes would lead past WireGuard.
func (s *Inventory) MovesTunnels() bool {
	for i := range s.Nodes {
		if calico.Encrypts(&s.Nodes[i]) {
			return false
		}
	}
	return s.KeepsTunnels() && slices.ContainsFunc(s.Moves, func(m PoolMove) bool { return m.Old != nil && m.Old.Overlay() == "VXLAN" })
}

func (s *Inventory) Ranges() []podmove.MovedRange {
	var all []podmove.MovedRange
	for i := range s.Moves {
		m := &s.Moves[i]
		all = append(all, podmove.MovedRange{From: m.From, To: m.To, Place: m.place()})
	}
	return all
}
