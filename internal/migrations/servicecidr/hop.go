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
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// hopStep changes the ClusterIP of a Service in place, by two patches. A ClusterIP cannot be changed, except from and to
// type ExternalName (validateServiceClusterIPsRelatedFields and ValidateServiceUpdate in k8s.io/kubernetes
// pkg/apis/core/validation/validation.go); between the patches the Service's name leads to its bridge. See
// docs/design/hop.md.
type hopStep struct {
	planner *Planner
	entry   *Entry
	back    bool
	// seen is the Service as State saw it, for the Do that follows. It carries its resourceVersion into every patch, so a
	// Service that changed in between is met with a conflict and looked at again.
	seen *corev1.Service
	// began is when Do was first called.
	began time.Time
}

var (
	_ engine.Undoer    = (*hopStep)(nil)
	_ engine.Previewer = (*hopStep)(nil)
)

func (h *hopStep) ID() string {
	verb := "hop/"
	if h.back {
		verb = "return/"
	}
	return verb + h.entry.Key().String()
}

func (h *hopStep) Title() string {
	src, dest := h.ends()
	risk := ""
	if h.entry.HasNodePorts() {
		risk = "; its node ports may refuse connections for up to a second"
	}
	return fmt.Sprintf("Move %s from %s to %s%s", h.entry.Key(), src, dest, risk)
}

// Undo is the same hop the other way.
func (h *hopStep) Undo() engine.Step {
	return &hopStep{planner: h.planner, entry: h.entry, back: !h.back}
}

func (h *hopStep) ends() (src, dest netip.Addr) {
	if h.back {
		return h.entry.New, h.entry.Old
	}
	return h.entry.Old, h.entry.New
}

func (h *hopStep) client() client.Client { return h.planner.Tools.Cluster }

func (h *hopStep) State(ctx context.Context) (engine.State, error) {
	svc, err := h.read(ctx)
	h.seen = svc
	if err != nil || svc == nil {
		return engine.Done, err
	}
	src, dest := h.ends()
	switch {
	case svc.Spec.Type == corev1.ServiceTypeExternalName && svc.Annotations[v1alpha1.LabelMigration] == h.planner.spec().Name:
		return engine.Pending, nil
	case isAt(svc, dest):
		return engine.Done, nil
	case isAt(svc, src):
		return engine.Pending, nil
	}
	return engine.Blocked, fmt.Errorf("service %s is now of type %s at %q, and was to move from %s to %s",
		h.entry.Key(), svc.Spec.Type, svc.Spec.ClusterIP, src, dest)
}

// isAt reports whether a Service has an address and is at it.
func isAt(svc *corev1.Service, a netip.Addr) bool {
	return svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP == a.String()
}

// read returns nil for a Service that is gone: then there is nothing to move, and its bridge is removed as an orphan.
func (h *hopStep) read(ctx context.Context) (*corev1.Service, error) {
	return readService(ctx, h.client(), h.entry)
}

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

// lately is the Service as the State of a step has just seen it, once; without one before it, it is read.
func lately(ctx context.Context, c client.Client, e *Entry, seen **corev1.Service) (*corev1.Service, error) {
	if svc := *seen; svc != nil {
		*seen = nil
		return svc, nil
	}
	return readService(ctx, c, e)
}

func (h *hopStep) Do(ctx context.Context) error {
	if h.began.IsZero() {
		h.began = h.planner.Tools.now()
	}
	svc, err := lately(ctx, h.client(), h.entry, &h.seen)
	if err != nil || svc == nil {
		return err
	}
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		if err := h.follow(ctx, svc); err != nil {
			return err
		}
		if svc.Spec.Type == corev1.ServiceTypeNodePort {
			done, err := bridge.Nudge(ctx, h.client(), h.planner.Survey.Pool, h.planner.spec().Name)
			if err != nil {
				return err
			}
			defer func() { _ = done(context.WithoutCancel(ctx)) }() // it goes with its namespace at the latest
			if err := h.proven(ctx, svc); err != nil {              // the nudge took a while
				return err
			}
		}
		if err := h.leave(ctx, svc); err != nil {
			return err
		}
	}
	src, _ := h.ends()
	// From here on no Service owns the address left behind, but the bridge answers on it.
	left := h.hold(src)
	if err := left.PlaceAfter(ctx, h.client(), h.entry.Key()); err == nil {
		h.entry.placed(left)
	} else if !isTakenBySomebody(err) {
		return err
	}
	return h.arrive(ctx, svc)
}

// follow looks at the bridge, right before the Service leaves. It brings the bridge in line with a Service that somebody
// changed after its bridge was made, and proves it again.
func (h *hopStep) follow(ctx context.Context, svc *corev1.Service) error {
	err := h.proven(ctx, svc)
	var drift *bridge.DriftError
	if !errors.As(err, &drift) {
		return err
	}
	if err := h.planner.bridgeOf(h.entry, svc).Ensure(ctx, h.client(), h.planner.Survey.Pool); err != nil {
		return err
	}
	if err := h.planner.prove(ctx, h.ID()); err != nil {
		return err
	}
	return h.proven(ctx, svc)
}

// proven returns nil only if the bridge is what the Service needs.
func (h *hopStep) proven(ctx context.Context, svc *corev1.Service) error {
	if err := h.planner.bridgeOf(h.entry, svc).Proven(ctx, h.client()); err != nil {
		return fmt.Errorf("service %s must not leave its address: %w", h.entry.Key(), err)
	}
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
	if err := h.hold(dest).Release(ctx, h.client()); err != nil {
		return err
	}
	original, err := Original(svc)
	if err != nil {
		return err
	}
	err = h.send(ctx, svc, h.patchArrive(svc, original))
	if bridge.IsTaken(err) {
		return h.taken(ctx, svc, dest)
	}
	return bridge.NotReadyYet(err)
}

// taken deals with a target that somebody else was given in the moment between its release and patch B: the Service
// goes to the next free address, after its bridge does.
func (h *hopStep) taken(ctx context.Context, svc *corev1.Service, dest netip.Addr) error {
	if h.back {
		return fmt.Errorf("service %s cannot have its old address back: %s was given to another Service meanwhile", h.entry.Key(), dest)
	}
	if err := h.planner.place(ctx, h.entry); err != nil {
		return err
	}
	target := map[string]any{"metadata": map[string]any{
		"resourceVersion": svc.ResourceVersion,
		"annotations":     map[string]any{v1alpha1.AnnotationTargetIP: h.entry.New.String()},
	}}
	if err := h.send(ctx, svc, target); err != nil {
		return err
	}
	if err := h.planner.bridgeOf(h.entry, svc).Ensure(ctx, h.client(), h.planner.Survey.Pool); err != nil {
		return err
	}
	if err := h.planner.prove(ctx, h.ID()); err != nil {
		return err
	}
	return engine.NotYet("address %s of service %s was taken by somebody else; going to %s", dest, h.entry.Key(), h.entry.New)
}

// prove passes a barrier within a step.
//
// One at a time: a barrier begins by removing the sentinels that others of its migration left behind.
func (p *Planner) prove(ctx context.Context, name string) error {
	p.proving.Lock()
	defer p.proving.Unlock()
	b := p.barrier(name)
	if a, ok := b.(engine.Abandoner); ok {
		defer func() { _ = a.Abandon(context.WithoutCancel(ctx)) }() // the next barrier removes what this cannot
	}
	if err := b.Do(ctx); err != nil {
		return err
	}
	var last error
	err := wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		last = b.Verify(ctx)
		if last != nil && !engine.Retryable(last) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil && last != nil {
		return last
	}
	return err
}

func (h *hopStep) send(ctx context.Context, svc *corev1.Service, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	err = h.client().Patch(ctx, svc, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
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
	key := h.entry.BridgeKey()
	notes := map[string]any{
		v1alpha1.LabelMigration:         h.planner.spec().Name,
		v1alpha1.AnnotationOldIP:        h.entry.Old.String(),
		v1alpha1.AnnotationTargetIP:     h.entry.New.String(),
		v1alpha1.AnnotationOriginalSpec: string(spec),
		v1alpha1.AnnotationMovedAt:      nil,
	}
	if h.back { // pods started since then may carry the address that is left now
		notes[v1alpha1.AnnotationAwaySince] = svc.Annotations[v1alpha1.AnnotationMovedAt]
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": svc.ResourceVersion, "annotations": notes},
		"spec": map[string]any{
			"type":                  corev1.ServiceTypeExternalName,
			"externalName":          fmt.Sprintf("%s.%s.svc.%s", key.Name, key.Namespace, h.planner.spec().Domain),
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
				// The target may be another than patch A named: somebody may have taken that one in between.
				v1alpha1.AnnotationTargetIP: h.entry.New.String(),
				v1alpha1.AnnotationMovedAt:  h.planner.Tools.now().UTC().Format(time.RFC3339Nano),
			},
		},
		"spec": spec,
	}
}

// Original is the spec a Service had just before its latest hop.
func Original(svc *corev1.Service) (*corev1.ServiceSpec, error) {
	text, ok := svc.Annotations[v1alpha1.AnnotationOriginalSpec]
	if !ok {
		return nil, fmt.Errorf("service %s/%s has no annotation %s", svc.Namespace, svc.Name, v1alpha1.AnnotationOriginalSpec)
	}
	spec := &corev1.ServiceSpec{}
	if err := json.Unmarshal([]byte(text), spec); err != nil {
		return nil, fmt.Errorf("service %s/%s: annotation %s: %w", svc.Namespace, svc.Name, v1alpha1.AnnotationOriginalSpec, err)
	}
	return spec, nil
}

func (h *hopStep) hold(a netip.Addr) *bridge.Hold {
	return h.entry.hold(h.planner.spec().Name, a)
}

// Verify looks at what a hop could have damaged. Other fields it leaves alone: somebody may have changed them since.
func (h *hopStep) Verify(ctx context.Context) error {
	svc, err := h.read(ctx)
	if err != nil || svc == nil {
		return err
	}
	src, dest := h.ends()
	original, err := Original(svc)
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
	if err := h.hold(src).Check(ctx, h.client()); err != nil {
		return fmt.Errorf("service %s has moved, but its address %s is not kept: %w", h.entry.Key(), src, err)
	}
	if err := bridge.SameEndpoints(ctx, h.client(), h.entry.Key(), h.entry.BridgeKey()); err != nil {
		return err
	}
	h.tell(svc)
	return nil
}

// tell the observer that the Service has arrived, unless it is one of replumb's own.
func (h *hopStep) tell(svc *corev1.Service) {
	if h.planner.Observer == nil || h.began.IsZero() || svc.Labels[v1alpha1.LabelRole] != "" {
		return
	}
	src, dest := h.ends()
	now := h.planner.Tools.now()
	h.planner.Observer.Moved(h.entry.Key().String(), src.String(), dest.String(), "hop", now, now.Sub(h.began))
}

// Preview is made by the functions that make the patches.
func (h *hopStep) Preview() ([]engine.Change, error) {
	object := "Service " + h.entry.Key().String()
	var changes []engine.Change
	svc := h.entry.Service
	original := &svc.Spec
	if svc.Spec.Type != corev1.ServiceTypeExternalName {
		leave, err := h.patchLeave(svc)
		if err != nil {
			return nil, err
		}
		changes = append(changes, engine.Change{Verb: "patch", Object: object, Body: timeless(leave)})
	} else {
		var err error
		if original, err = Original(svc); err != nil {
			return nil, err
		}
	}
	src, dest := h.ends()
	hold := h.hold(src).Build()
	return append(changes,
		engine.Change{Verb: "create", Object: "IPAddress " + src.String(), Body: hold},
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
