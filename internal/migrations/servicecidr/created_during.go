package servicecidr

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/hop"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
)

// CreatedDuringPolicy is what a rollback does with Services that were made in the target range
// since the migration began.
type CreatedDuringPolicy string

// The zero value is KeepCreatedDuring.
const (
	// MoveCreatedDuring takes them to free addresses in the old range, over bridges.
	MoveCreatedDuring CreatedDuringPolicy = "Move"
	// KeepCreatedDuring leaves them where they are, and hands the target range to the cluster.
	KeepCreatedDuring CreatedDuringPolicy = "Keep"
)

// CreatedDuring is a Service in a range that a rollback takes away, and not put there by a move.
type CreatedDuring struct {
	// Service as namespace/name, and its address in that range.
	Service string `json:"service"`
	Address string `json:"address"`
	// Stays is why it cannot be moved, in words that follow its name; empty, if it can.
	Stays string `json:"stays,omitempty"`

	entry *services.Entry
}

// FindCreatedDuring are Services made in the target range since the migration began, by name.
func FindCreatedDuring(s *services.Inventory) []CreatedDuring {
	going := withdrawnRanges(s)
	pool := cidr.NewPool(s.Spec.From, s.Used)
	names := map[types.NamespacedName]bool{}
	for _, e := range slices.Concat(s.All(), s.Pins, s.Stays) {
		names[e.Key()] = true
		if e.Old.IsValid() { // where a Service returns to
			pool.Use(e.Old)
		}
	}
	var all []CreatedDuring
	for _, e := range slices.Concat(s.Pins, s.Stays) {
		at, in := services.AddressIn(e.Service, going)
		if !in {
			continue
		}
		late := &services.Entry{Service: e.Service, New: at, Position: services.Moved}
		stays := reasonToKeep(s, e, at)
		switch {
		case stays != "":
		case names[e.BridgeKey()]:
			stays = "cannot have a bridge: service " + e.BridgeKey().String() + " has its name"
		default:
			late.Old, stays = returnTo(s, pool, at)
		}
		all = append(all, CreatedDuring{Service: e.Key().String(), Address: at.String(), Stays: stays, entry: late})
	}
	return all
}

func withdrawnRanges(s *services.Inventory) []netip.Prefix {
	var all []netip.Prefix
	for i := range s.Ranges {
		c := &s.Ranges[i]
		if c.Labels[v1alpha1.LabelMigration] == s.Spec.Name && c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleRange {
			all = append(all, services.CIDRsOf(c)...)
		}
	}
	return all
}

// returnTo keeps the offset in the old range where it is free, else takes the lowest free address.
func returnTo(s *services.Inventory, pool *cidr.Allocator, at netip.Addr) (a netip.Addr, none string) {
	if a, ok := pool.TakeSameOffset(at, s.Spec.To); ok {
		return a, ""
	}
	a, err := pool.Lowest()
	if err != nil {
		return a, "cannot be moved: the old range has no free address"
	}
	return a, ""
}

func reasonToKeep(s *services.Inventory, e *services.Entry, at netip.Addr) string {
	switch e.Reason.Kind {
	case services.Foreign, services.Ending, services.Unconfirmed:
		return e.Reason.Text
	}
	return reasonToStayAt(s, e.Service, at)
}

func reasonToStayAt(s *services.Inventory, svc *corev1.Service, at netip.Addr) string {
	if len(s.Spec.From) == 0 {
		return "cannot be moved: there is no other range for it"
	}
	as, there := svc.DeepCopy(), s.Spec.From[0].Addr().Next()
	for i, text := range as.Spec.ClusterIPs {
		if text == at.String() {
			as.Spec.ClusterIPs[i] = there.String()
		}
	}
	as.Spec.ClusterIP = as.Spec.ClusterIPs[0]
	place, reason := s.PositionOf(as, "", there)
	if place == services.Waiting {
		return ""
	}
	return reason.Text
}

// returning leaves out Services made after the rollback began, so that it ends.
func (j *Job) returning(s *services.Inventory) []CreatedDuring {
	if j.CreatedDuring != MoveCreatedDuring || j.Migration.Spec.Desired != v1alpha1.DesiredRolledBack {
		return nil
	}
	movable := slices.DeleteFunc(FindCreatedDuring(s), func(l CreatedDuring) bool { return l.Stays != "" })
	if j.late == nil {
		j.late = map[types.UID]bool{}
		for _, l := range movable {
			j.late[l.entry.Service.UID] = true
		}
	}
	return slices.DeleteFunc(movable, func(l CreatedDuring) bool { return !j.late[l.entry.Service.UID] })
}

// adopt gives them addresses in the old range, from where they count as moved.
func (p *Planner) adopt() []engine.Group {
	var steps []engine.Step
	for _, l := range p.CreatedDuring {
		e := l.entry
		steps = append(steps, hop.Adoption{
			Client: p.Tools.Client(), Migration: p.spec().Name, Progress: p.tracker.Of(e),
			Pool:    cidr.NewPool(p.spec().From, p.Inventory.Used),
			MayMove: func(svc *corev1.Service) bool { return reasonToStayAt(p.Inventory, svc, e.New) == "" },
		}.Step())
	}
	return engine.AtOnce(parallel, "", steps...)
}

func (p *Planner) adoptsAhead() bool { return len(p.CreatedDuring) > 0 }
