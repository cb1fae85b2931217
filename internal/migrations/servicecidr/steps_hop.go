package servicecidr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// hopStep changes the ClusterIP of a Service in place, by two patches. A ClusterIP cannot be changed, except from and to
// type ExternalName (validateServiceClusterIPsRelatedFields and ValidateServiceUpdate in k8s.io/kubernetes
// pkg/apis/core/validation/validation.go); between the patches the Service's name leads to its bridge. See
// docs/design/hop.md.
//
// The Service that was seen carries its resourceVersion into every patch, so a Service that changed in between is met with a
// conflict and looked at again.
type hopStep struct {
	engine.Observed[*corev1.Service]

	transit *transit
	entry   *Entry
	to      engine.Direction
	// began is when the first patch was about to be sent, for the observer.
	began time.Time
	// left is why the Service does not hop, once it was found that it may not.
	left string
	// arrived is the Service as patch B was answered, for the first proof; kept says that the address it left was reserved before.
	arrived *corev1.Service
	kept    bool
}

func (t *transit) hop(e *Entry, to engine.Direction) engine.Step {
	id := "hop/"
	if to == engine.Backward {
		id = "return/"
	}
	h := &hopStep{transit: t, entry: e, to: to}
	h.Observed = engine.Observed[*corev1.Service]{
		Name: id + e.Key().String(), As: engine.RoleMove,
		Look: h.look, Write: h.write, Proof: h.prove, Changes: h.changes,
		Reverse: func() engine.Step { return t.hop(e, to.Opposite()) },
	}
	return h
}

// Title implements engine.Step. The target is another one when the first was found taken.
func (h *hopStep) Title() string {
	if h.left != "" {
		return fmt.Sprintf("Leave %s alone: it %s", h.entry.Key(), h.left)
	}
	src, dest := h.ends()
	risk := ""
	if h.entry.HasNodePorts() {
		risk = "; its node ports may refuse connections for up to a second"
	}
	return fmt.Sprintf("Move %s from %s to %s%s", h.entry.Key(), src, dest, risk)
}

func (h *hopStep) ends() (src, dest netip.Addr) { return h.entry.ends(h.to) }

// look finds nothing to do for a Service that is gone: its bridge is removed as an orphan.
func (h *hopStep) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	svc, err := readService(ctx, h.transit.client, h.entry)
	if err != nil || svc == nil {
		return engine.Done, nil, err
	}
	src, dest := h.ends()
	switch {
	case isAt(svc, dest):
		return engine.Done, svc, nil
	case crossing(svc, h.transit.domain), isAt(svc, src), h.stays(svc) != "":
		return engine.Pending, svc, nil
	}
	return engine.Blocked, svc, fmt.Errorf("service %s is now of type %s at %q, and was to move from %s to %s",
		h.entry.Key(), svc.Spec.Type, svc.Spec.ClusterIP, src, dest)
}

// isAt reports whether a Service has an address and is at it.
func isAt(svc *corev1.Service, a netip.Addr) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP == a.String()
}

// readService returns nil for a Service that is gone.
func readService(ctx context.Context, c client.Client, e *Entry) (*corev1.Service, error) {
	svc := &corev1.Service{}
	err := c.Get(ctx, e.Key(), svc)
	if apierrors.IsNotFound(err) || (err == nil && svc.UID != e.Service.UID) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", e.Key(), err)
	}
	return svc, nil
}

func (h *hopStep) write(ctx context.Context, svc *corev1.Service) error {
	if h.left, h.As = h.stays(svc), engine.RoleMove; h.left != "" {
		h.As = engine.RoleOwn // nothing moves
		return h.quit(ctx, svc)
	}
	h.arrived, h.kept, h.entry.latest = nil, false, answer{}
	if h.began.IsZero() {
		h.began = h.transit.now()
	}
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		if err := h.follow(ctx, svc); err != nil {
			return err
		}
		if svc.Spec.Type == corev1.ServiceTypeNodePort {
			done, err := bridge.Nudge(ctx, h.transit.client, h.transit.pool, h.transit.migration)
			if err != nil {
				return err
			}
			defer func() { _ = done(context.WithoutCancel(ctx)) }() // it goes with its namespace at the latest
			if err := h.proven(ctx, svc); err != nil {              // the nudge took a while
				return err
			}
		}
		if err := h.note(ctx, svc); err != nil {
			return err
		}
		if err := h.leave(ctx, svc); err != nil {
			return err
		}
	}
	src, _ := h.ends()
	// From here on no Service owns the address left behind, but the bridge answers on it.
	left := h.reservation(src)
	if err := left.PlaceAfter(ctx, h.transit.client, h.entry.Key()); err == nil {
		h.entry.placed(left)
		h.kept = true
	} else if !isTaken(err) {
		return err
	}
	if err := h.arrive(ctx, svc); err != nil {
		return err
	}
	h.arrived, h.entry.latest.service = svc, svc
	return nil
}

// follow looks at the bridge, right before the Service leaves. It brings the bridge in line with a Service that was changed
// after its bridge was made, and proves it again.
func (h *hopStep) follow(ctx context.Context, svc *corev1.Service) error {
	err := h.proven(ctx, svc)
	if !errors.As(err, new(*bridge.DriftError)) {
		return err
	}
	if err := h.rebridge(ctx, svc); err != nil {
		return err
	}
	return h.proven(ctx, svc)
}

// rebridge brings the bridge in line, and proves that nodes know it.
func (h *hopStep) rebridge(ctx context.Context, svc *corev1.Service) error {
	t := h.transit
	if err := t.bridgeOf(h.entry, svc).Ensure(ctx, t.client, t.pool); err != nil {
		return err
	}
	return t.barriers.pass(ctx, h.ID())
}

// proven returns nil only if the bridge is what the Service needs.
func (h *hopStep) proven(ctx context.Context, svc *corev1.Service) error {
	have, err := h.transit.bridgeOf(h.entry, svc).Proven(ctx, h.transit.client, h.transit.endpoints)
	h.entry.latest.bridge = have
	if err != nil {
		return fmt.Errorf("service %s must not leave its address: %w", h.entry.Key(), err)
	}
	return nil
}

// note keeps, on the reservation of the address to which the Service goes, what patch A takes from the Service: the Service
// itself others may write.
func (h *hopStep) note(ctx context.Context, svc *corev1.Service) (err error) {
	if h.entry.leaving, err = essence(&svc.Spec); err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	_, dest := h.ends()
	target := h.reservation(dest)
	if h.entry.reserved[dest].original == target.Original {
		return nil
	}
	if err := target.Note(ctx, h.transit.client); err != nil {
		return err
	}
	h.entry.placed(target)
	return nil
}

// leave is patch A. It is the dangerous one: once it is through, only the bridge answers on the old address. So the
// bridge is looked at right before.
func (h *hopStep) leave(ctx context.Context, svc *corev1.Service) error {
	patch, err := h.patchLeave(svc)
	if err != nil {
		return err
	}
	return h.send(ctx, svc, patch)
}

// arrive is patch B.
func (h *hopStep) arrive(ctx context.Context, svc *corev1.Service) error {
	_, dest := h.ends()
	if err := h.reservation(dest).Release(ctx, h.transit.client); err != nil {
		return err
	}
	original, err := h.entry.original(svc)
	if err != nil {
		return err
	}
	err = h.send(ctx, svc, h.patchArrive(svc, original))
	if bridge.IsTaken(err) {
		return h.retarget(ctx, svc, dest)
	}
	return bridge.NotReadyYet(err)
}

// retarget deals with a target that another Service was given in the moment between its release and patch B: the Service
// goes to the next free address, after its bridge does.
func (h *hopStep) retarget(ctx context.Context, svc *corev1.Service, dest netip.Addr) error {
	if h.to == engine.Backward {
		return fmt.Errorf("service %s cannot have its old address back: %s was given to another Service meanwhile", h.entry.Key(), dest)
	}
	if err := h.transit.reserve(ctx, h.entry); err != nil {
		return err
	}
	target := map[string]any{"metadata": map[string]any{
		"resourceVersion": svc.ResourceVersion,
		"annotations":     map[string]any{v1alpha1.AnnotationTargetIP: h.entry.New.String()},
	}}
	if err := h.send(ctx, svc, target); err != nil {
		return err
	}
	if err := h.rebridge(ctx, svc); err != nil {
		return err
	}
	return engine.NotYet("address %s of service %s was taken by another Service; going to %s", dest, h.entry.Key(), h.entry.New)
}

func (h *hopStep) send(ctx context.Context, svc *corev1.Service, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	err = h.transit.client.Patch(ctx, svc, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) {
		return engine.NotYet("service %s has just been deleted", h.entry.Key()) // the next look finds it gone, and nothing to do
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	return nil
}

// patchLeave carries everything that is needed to go on from the object alone, should replumb be killed right after it.
func (h *hopStep) patchLeave(svc *corev1.Service) (map[string]any, error) {
	spec, err := json.Marshal(svc.Spec)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	notes := map[string]any{
		v1alpha1.LabelMigration:         h.transit.migration,
		v1alpha1.AnnotationOldIP:        h.entry.Old.String(),
		v1alpha1.AnnotationTargetIP:     h.entry.New.String(),
		v1alpha1.AnnotationOriginalSpec: string(spec),
		v1alpha1.AnnotationMovedAt:      nil,
	}
	if h.to == engine.Backward { // pods started since then may carry the address that is left now
		notes[v1alpha1.AnnotationAwaySince] = svc.Annotations[v1alpha1.AnnotationMovedAt]
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": svc.ResourceVersion, "annotations": notes},
		"spec": map[string]any{
			"type":                  corev1.ServiceTypeExternalName,
			"externalName":          bridgeHost(svc, h.transit.domain),
			"clusterIP":             nil,
			"clusterIPs":            nil,
			"ipFamilies":            nil,
			"ipFamilyPolicy":        nil,
			"internalTrafficPolicy": nil,
			"externalTrafficPolicy": nil,
		},
	}, nil
}

func (h *hopStep) patchArrive(svc *corev1.Service, original *corev1.ServiceSpec) map[string]any {
	_, dest := h.ends()
	spec := map[string]any{
		"type":                  original.Type,
		"externalName":          nil,
		"clusterIP":             dest.String(),
		"clusterIPs":            []string{dest.String()},
		"ipFamilies":            original.IPFamilies,
		"ipFamilyPolicy":        original.IPFamilyPolicy,
		"internalTrafficPolicy": original.InternalTrafficPolicy,
	}
	if original.Type == corev1.ServiceTypeNodePort { // patch A gave the node ports up
		spec["ports"] = original.Ports
		spec["externalTrafficPolicy"] = original.ExternalTrafficPolicy
	}
	return map[string]any{
		"metadata": map[string]any{
			"resourceVersion": svc.ResourceVersion,
			"annotations": map[string]any{
				// The target may be another than patch A named: another Service may have taken that one in between.
				v1alpha1.AnnotationTargetIP: h.entry.New.String(),
				v1alpha1.AnnotationMovedAt:  h.transit.now().UTC().Format(time.RFC3339Nano),
			},
		},
		"spec": spec,
	}
}

func (h *hopStep) reservation(a netip.Addr) *bridge.Hold {
	return h.entry.reservation(h.transit.migration, a)
}

// landed is the Service after its hop: as patch B was answered, once, and else as it is read.
func (h *hopStep) landed(ctx context.Context) (*corev1.Service, error) {
	if svc := h.arrived; svc != nil {
		h.arrived = nil
		return svc, nil
	}
	return readService(ctx, h.transit.client, h.entry)
}

// prove looks at what a hop could have damaged. Other fields it leaves alone: they may have been changed since.
func (h *hopStep) prove(ctx context.Context) error {
	if h.left != "" {
		return nil // quit has looked
	}
	svc, err := h.landed(ctx)
	if err != nil || svc == nil {
		return err
	}
	src, dest := h.ends()
	original, err := h.entry.original(svc)
	if err != nil {
		return err
	}
	s := &svc.Spec
	switch {
	case !isAt(svc, dest) || s.ExternalName != "":
		return fmt.Errorf("service %s is of type %s at %q, want %s", h.entry.Key(), s.Type, s.ClusterIP, dest)
	case !equality.Semantic.DeepEqual(s.IPFamilies, original.IPFamilies),
		!equality.Semantic.DeepEqual(s.IPFamilyPolicy, original.IPFamilyPolicy),
		!equality.Semantic.DeepEqual(s.InternalTrafficPolicy, original.InternalTrafficPolicy):
		return fmt.Errorf("service %s lost its ipFamilies, ipFamilyPolicy or internalTrafficPolicy", h.entry.Key())
	case original.Type == corev1.ServiceTypeNodePort &&
		(!equality.Semantic.DeepEqual(s.Ports, original.Ports) || s.ExternalTrafficPolicy != original.ExternalTrafficPolicy):
		return fmt.Errorf("service %s lost its node ports or externalTrafficPolicy", h.entry.Key())
	}
	if !h.kept {
		if err := h.reservation(src).Check(ctx, h.transit.client); err != nil {
			return fmt.Errorf("service %s has moved, but its address %s is not kept: %w", h.entry.Key(), src, err)
		}
	}
	if err := h.transit.endpoints.Same(ctx, h.entry.Key(), h.entry.BridgeKey()); err != nil {
		return err
	}
	h.report(svc)
	return nil
}

// report tells the observer that the Service has arrived, unless it is one of replumb's own.
func (h *hopStep) report(svc *corev1.Service) {
	observer := h.transit.observer
	if observer == nil || h.began.IsZero() || svc.Labels[v1alpha1.LabelRole] != "" {
		return
	}
	src, dest := h.ends()
	now := h.transit.now()
	observer.Moved(h.entry.Key().String(), src.String(), dest.String(), "hop", now, now.Sub(h.began))
}

// changes are made by the functions that make the patches.
func (h *hopStep) changes() ([]engine.Change, error) {
	object := "Service " + h.entry.Key().String()
	var changes []engine.Change
	src, dest := h.ends()
	svc := h.entry.Service
	original := &svc.Spec
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		leave, err := h.patchLeave(svc)
		if err != nil {
			return nil, err
		}
		if svc.Spec.Type == corev1.ServiceTypeNodePort {
			const nudge = "Service " + v1alpha1.SystemNamespace + "/nudge-…"
			changes = append(changes, engine.Change{Verb: "create", Object: nudge}, engine.Change{Verb: "delete", Object: nudge})
		}
		unless := " (instead, if the Service may not move any more by then)"
		for _, c := range bridgeDeletion(h.entry.BridgeKey(), svc.Spec.Selector) {
			changes = append(changes, engine.Change{Verb: c.Verb, Object: c.Object + unless})
		}
		changes = append(changes,
			engine.Change{Verb: "patch", Object: "IPAddress " + dest.String() + " (if the Service has changed since it was reserved)"},
			engine.Change{Verb: "patch", Object: object, Body: timeless(leave)},
		)
	} else {
		var err error
		if original, err = h.entry.original(svc); err != nil {
			return nil, err
		}
	}
	return append(changes,
		engine.Change{Verb: "create", Object: "IPAddress " + src.String(), Body: h.reservation(src).Build()},
		engine.Change{Verb: "delete", Object: "IPAddress " + dest.String() + " (held)"},
		engine.Change{Verb: "patch", Object: object, Body: timeless(h.patchArrive(svc, original))},
	), nil
}

// timeless drops from a patch what is different in every preview.
func timeless(patch map[string]any) map[string]any {
	meta := patch["metadata"].(map[string]any)
	delete(meta, "resourceVersion")
	if notes := meta["annotations"].(map[string]any); notes[v1alpha1.AnnotationMovedAt] != nil {
		notes[v1alpha1.AnnotationMovedAt] = "<now>"
	}
	return patch
}
