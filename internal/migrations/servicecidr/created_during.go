package servicecidr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/cidr"
)

// CreatedDuringPolicy says what a rollback does with Services that were made in the target range since the migration began.
type CreatedDuringPolicy string

// The choices. The zero value is LateKeep.
const (
	// MoveCreatedDuring takes them to free addresses in the old range, over bridges.
	MoveCreatedDuring CreatedDuringPolicy = "Move"
	// KeepCreatedDuring leaves them where they are. The target range stays too, and is the cluster's own.
	KeepCreatedDuring CreatedDuringPolicy = "Keep"
)

// CreatedDuring is a Service in a range that a rollback takes away, though the migration has not moved it there.
type CreatedDuring struct {
	// Service as namespace/name, and its address in that range.
	Service string `json:"service"`
	Address string `json:"address"`
	// Stays is why it cannot be moved to the old range, in words that follow its name; empty, if it can.
	Stays string `json:"stays,omitempty"`

	// entry is as of a Service that has moved, so that it can return.
	entry *Entry
}

// FindCreatedDuring are the Services that were made in the target range since the migration began, by name.
func FindCreatedDuring(s *Inventory) []CreatedDuring {
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
		at, in := AddressIn(e.Service, going)
		if !in {
			continue
		}
		late := &Entry{Service: e.Service, New: at, Position: Moved}
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

// withdrawnRanges are the target ranges that a rollback takes away: those that the migration has added.
func withdrawnRanges(s *Inventory) []netip.Prefix {
	var all []netip.Prefix
	for i := range s.Ranges {
		c := &s.Ranges[i]
		if c.Labels[v1alpha1.LabelMigration] == s.Spec.Name && c.Labels[v1alpha1.LabelRole] == v1alpha1.RoleRange {
			all = append(all, CIDRsOf(c)...)
		}
	}
	return all
}

// returnTo takes a free address of the old range, the same one from its start if that is free.
func returnTo(s *Inventory, pool *cidr.Pool, at netip.Addr) (a netip.Addr, none string) {
	if a, ok := pool.Keep(at, s.Spec.To); ok {
		return a, ""
	}
	a, err := pool.Lowest()
	if err != nil {
		return a, "cannot be moved: the old range has no free address"
	}
	return a, ""
}

// reasonToKeep says why a Service cannot leave its address in the target range; nothing, if it can.
func reasonToKeep(s *Inventory, e *Entry, at netip.Addr) string {
	switch e.Reason.Kind {
	case Foreign, Ending, Unconfirmed:
		return e.Reason.Text
	}
	return reasonToStayAt(s, e.Service, at)
}

// reasonToStayAt says what would be in the way of a Service that was at an address of the old range: the same is where it is.
func reasonToStayAt(s *Inventory, svc *corev1.Service, at netip.Addr) string {
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
	place, reason := s.positionOf(as, "", there)
	if place == Waiting {
		return ""
	}
	return reason.Text
}

// returning are the late Services that the rollback moves: what is made after it began keeps its address, so that it ends.
func (j *Job) returning(s *Inventory) []CreatedDuring {
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

// adopt gives late Services addresses in the old range. From then on each is one that has moved, and returns as all others do.
func (p *Planner) adopt() []engine.Group {
	var steps []engine.Step
	for _, l := range p.CreatedDuring {
		steps = append(steps, adoption{
			client: p.Tools.Client(), survey: p.Inventory, entry: l.entry, pool: cidr.NewPool(p.spec().From, p.Inventory.Used),
		}.step())
	}
	return engine.AtOnce(parallel, "", steps...)
}

// adoptsAhead reports whether what comes after phase late of a rollback cannot be planned yet.
func (p *Planner) adoptsAhead() bool { return len(p.CreatedDuring) > 0 }

// adoption of one late Service.
type adoption struct {
	client client.Client
	survey *Inventory
	entry  *Entry
	// pool has the free addresses of the old range, for when the chosen one was taken meanwhile.
	pool *cidr.Pool
}

func (a adoption) step() engine.Step {
	e := a.entry
	return &engine.Observed[*corev1.Service]{
		Name: "late/" + e.Key().String(), About: fmt.Sprintf("Reserve %s for %s, which was made at %s", e.Old, e.Key(), e.New),
		Look: a.look, Write: a.write,
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{
				{Verb: "create", Object: "IPAddress " + e.Old.String(), Body: e.reservation(a.survey.Spec.Name, e.Old).Build()},
				{Verb: "patch", Object: "Service " + e.Key().String(), Body: a.notes("")},
			}, nil
		},
	}
}

// look leaves a Service alone that is gone, or may no longer move: then the range stays with it.
func (a adoption) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	svc, err := readService(ctx, a.client, a.entry)
	if err != nil {
		return engine.Unknown, nil, err
	}
	if svc == nil || !IsAt(svc, a.entry.New) || reasonToStayAt(a.survey, svc, a.entry.New) != "" {
		return engine.Done, nil, nil
	}
	if _, reserved := a.entry.reserved[a.entry.Old]; reserved && svc.Annotations[v1alpha1.LabelMigration] == a.survey.Spec.Name {
		return engine.Done, svc, nil
	}
	return engine.Pending, svc, nil
}

func (a adoption) write(ctx context.Context, svc *corev1.Service) (err error) {
	e := a.entry
	if e.Original, err = OriginalOf(&svc.Spec); err != nil {
		return fmt.Errorf("service %s: %w", e.Key(), err)
	}
	for {
		h := e.reservation(a.survey.Spec.Name, e.Old)
		if err = h.Place(ctx, a.client); err == nil {
			e.placed(h)
			break
		}
		if !isTaken(err) {
			return err
		}
		next, full := a.pool.Lowest()
		if full != nil {
			return fmt.Errorf("service %s: %w", e.Key(), errors.Join(err, full))
		}
		e.Old = next
	}
	patch, err := json.Marshal(a.notes(svc.ResourceVersion))
	if err != nil {
		return fmt.Errorf("service %s: %w", e.Key(), err)
	}
	return a.client.Patch(ctx, svc, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
}

// notes are what a moved Service says of itself. Pods may carry its address since it was made.
func (a adoption) notes(version string) map[string]any {
	meta := map[string]any{"annotations": map[string]any{
		v1alpha1.LabelMigration:     a.survey.Spec.Name,
		v1alpha1.AnnotationOldIP:    a.entry.Old.String(),
		v1alpha1.AnnotationTargetIP: a.entry.New.String(),
		v1alpha1.AnnotationMovedAt:  a.entry.Service.CreationTimestamp.UTC().Format(time.RFC3339Nano),
	}}
	if version != "" {
		meta["resourceVersion"] = version
	}
	return map[string]any{"metadata": meta}
}
