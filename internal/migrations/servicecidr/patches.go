package servicecidr

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// start takes a Service over that is at the address which it is to leave. All that may take time comes before the first patch: between the
// two nothing is asked of the API server, and everyone who watches Services sees one of type ExternalName for one round trip.
func (h *hopStep) start(ctx context.Context, svc *corev1.Service) error {
	if err := h.reserveTarget(ctx); err != nil {
		return err
	}
	if err := h.checkBridge(ctx, svc); err != nil {
		return err
	}
	if err := h.recordOriginal(ctx, svc); err != nil {
		return err
	}
	if h.rewrites(svc) {
		return h.rewrite(ctx, svc)
	}
	if svc.Spec.Type == corev1.ServiceTypeNodePort {
		done, err := h.delayKubeProxies(ctx, svc)
		if err != nil {
			return err
		}
		defer func() { _ = done(context.WithoutCancel(ctx)) }() // it goes with its namespace at the latest
	}
	if h.routed() {
		if err := h.steps.throttle.Begin(ctx, h.beside...); err != nil {
			return err
		}
	}
	if svc.Spec.Type == corev1.ServiceTypeNodePort || h.routed() {
		if err := h.proven(ctx, svc); err != nil { // that took a while
			return err
		}
	}
	return h.changeClusterIP(ctx, svc)
}

// routed reports whether ingress controllers are to see nothing of the hop.
func (h *hopStep) routed() bool { return len(h.beside) > 0 }

// reserveTarget reserves the target again that an attempt before this one has given back.
func (h *hopStep) reserveTarget(ctx context.Context) error {
	_, dest := h.ends()
	if _, reserved := h.entry.reserved[dest]; reserved {
		return nil
	}
	if h.to == engine.Forward {
		return h.steps.reserveNew(ctx, h.entry)
	}
	target := h.reservation(dest)
	err := target.Place(ctx, h.steps.client)
	if h.entry.allocated(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("service %s: its old address: %w", h.entry.Key(), err)
	}
	h.entry.placed(target)
	return nil
}

// recordOriginal keeps, where only replumb and the control plane write, what patch A takes from the Service, and between which addresses it is: the
// Service itself others may write, and while it has no address neither of them is reserved.
func (h *hopStep) recordOriginal(ctx context.Context, svc *corev1.Service) (err error) {
	if h.entry.Original, err = OriginalOf(&svc.Spec); err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	memo, have := h.entry.Memo(h.steps.migration), h.entry.recordedMemo()
	if have.original == memo.Original && have.old == memo.Old && have.target == memo.New {
		return nil
	}
	if err := memo.Note(ctx, h.steps.client); err != nil {
		return err
	}
	h.entry.placed(memo)
	return nil
}

// changeClusterIP sends both patches. The target is given back right before, and the address left behind reserved right after: what of that came in
// between, every watcher would wait for.
func (h *hopStep) changeClusterIP(ctx context.Context, svc *corev1.Service) error {
	original, err := h.entry.OriginalSpec(svc)
	if err != nil {
		return err
	}
	select {
	case h.steps.inTransit <- struct{}{}:
		defer func() { <-h.steps.inTransit }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := h.releaseTarget(ctx); err != nil {
		return err
	}
	if err := h.clearClusterIP(ctx, svc); err != nil {
		_ = h.reserveTarget(ctx) // the next attempt does, if there is one
		return err
	}
	defer h.steps.throttle.Arrived()
	return h.setClusterIP(ctx, svc, original)
}

// clearClusterIP is patch A. It is the dangerous one: once it is through, only the bridge answers at the old address.
func (h *hopStep) clearClusterIP(ctx context.Context, svc *corev1.Service) error {
	if h.routed() {
		if err := h.steps.throttle.Open(); err != nil {
			return err
		}
	}
	patch, err := h.patchToExternalName(svc)
	if err != nil {
		return err
	}
	return h.send(ctx, svc, patch)
}

// resume takes a Service over that is between the patches. It is too late to hurry: first its old address is reserved.
func (h *hopStep) resume(ctx context.Context, svc *corev1.Service) error {
	if err := h.reserveSource(ctx); err != nil {
		return err
	}
	original, err := h.entry.OriginalSpec(svc)
	if err != nil {
		return err
	}
	if err := h.releaseTarget(ctx); err != nil {
		return err
	}
	return h.setClusterIP(ctx, svc, original)
}

// releaseTarget gives the target back, so that the API server can give it to the Service.
func (h *hopStep) releaseTarget(ctx context.Context) error {
	_, dest := h.ends()
	if err := h.reservation(dest).Release(ctx, h.steps.client); err != nil {
		return err
	}
	delete(h.entry.reserved, dest)
	return nil
}

// reserveSource reserves the address left behind: no Service owns it, and the bridge answers there. One that another Service was given meanwhile the
// proof finds.
func (h *hopStep) reserveSource(ctx context.Context) error {
	if h.kept {
		return nil
	}
	src, _ := h.ends()
	left := h.reservation(src)
	err := left.PlaceAfter(ctx, h.steps.client, h.entry.Key())
	if err == nil {
		h.entry.placed(left)
		h.kept = true
	}
	if isTaken(err) {
		return nil
	}
	return err
}

// setClusterIP is patch B.
func (h *hopStep) setClusterIP(ctx context.Context, svc *corev1.Service, original *corev1.ServiceSpec) error {
	_, dest := h.ends()
	err := h.send(ctx, svc, h.patchToClusterIP(svc, original))
	if bridge.IsTaken(err) {
		return h.retarget(ctx, svc, dest)
	}
	return retryQuota(bridge.NotReadyYet(err))
}

// retarget deals with a target that another Service was given between its release and patch B: the Service goes to the next free address,
// after its bridge does.
func (h *hopStep) retarget(ctx context.Context, svc *corev1.Service, dest netip.Addr) error {
	if err := h.reserveSource(ctx); err != nil { // this will take a while
		return err
	}
	if err := h.checkOtherFamily(ctx, svc); err != nil {
		return err
	}
	if h.to == engine.Backward {
		return fmt.Errorf("service %s cannot have its old address back: %s was given to another Service meanwhile", h.entry.Key(), dest)
	}
	if err := h.steps.reserveNew(ctx, h.entry); err != nil {
		return err
	}
	memo := h.entry.Memo(h.steps.migration)
	if err := memo.Note(ctx, h.steps.client); err != nil {
		return err
	}
	h.entry.placed(memo)
	target := map[string]any{"metadata": map[string]any{
		"resourceVersion": svc.ResourceVersion,
		"annotations":     map[string]any{v1alpha1.AnnotationTargetIP: h.entry.New.String()},
	}}
	if err := h.send(ctx, svc, target); err != nil {
		return err
	}
	if err := h.repairBridge(ctx, svc); err != nil {
		return err
	}
	return engine.NotYet("address %s of service %s was taken by another Service; going to %s", dest, h.entry.Key(), h.entry.New)
}

// checkOtherFamily returns an error if it is the address of the other family that another Service was given. The control plane may have given it back to this
// one, too early.
func (h *hopStep) checkOtherFamily(ctx context.Context, svc *corev1.Service) error {
	kept := h.entry.Kept(svc)
	if !kept.IsValid() {
		return nil
	}
	asked := h.reservation(kept)
	err := asked.PlaceAfter(ctx, h.steps.client, h.entry.Key())
	if isTaken(err) {
		return fmt.Errorf("service %s cannot keep its address %s, at which its bridge goes on answering: %w", h.entry.Key(), kept, err)
	}
	if err != nil {
		return err
	}
	return asked.Release(ctx, h.steps.client)
}

func (h *hopStep) send(ctx context.Context, svc *corev1.Service, patch map[string]any) error {
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	err = h.steps.client.Patch(ctx, svc, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) {
		return engine.NotYet("service %s has just been deleted", h.entry.Key()) // the next look finds it gone, and nothing to do
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	return nil
}

// patchToExternalName carries everything that is needed to go on from the object alone, should replumb be killed right after it.
func (h *hopStep) patchToExternalName(svc *corev1.Service) (map[string]any, error) {
	spec, err := json.Marshal(svc.Spec)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", h.entry.Key(), err)
	}
	notes := map[string]any{
		v1alpha1.LabelMigration:         h.steps.migration,
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
			"externalName":          h.externalName(svc),
			"clusterIP":             nil,
			"clusterIPs":            nil,
			"ipFamilies":            nil,
			"ipFamilyPolicy":        nil,
			"internalTrafficPolicy": nil,
			"externalTrafficPolicy": nil,
		},
	}, nil
}

// externalName is where a Service leads between its patches: to the name of its bridge, or, for API servers, which go by externalName (ResolveCluster in
// k8s.io/apiserver pkg/util/proxy/proxy.go) and seldom ask the DNS of their cluster, to the old address, at which the bridge answers all the
// time. An address has no CNAME: a look-up of the Service's name in this moment has no answer. Of IPv6 none is a valid externalName.
func (h *hopStep) externalName(svc *corev1.Service) string {
	if h.entry.called && h.entry.Old.Is4() {
		return h.entry.Old.String()
	}
	return bridgeHost(svc, h.steps.domain)
}

func (h *hopStep) patchToClusterIP(svc *corev1.Service, original *corev1.ServiceSpec) map[string]any {
	_, dest := h.ends()
	addresses := ArrivesAt(dest, original)
	spec := map[string]any{
		"type":                  original.Type,
		"externalName":          nil,
		"clusterIP":             addresses[0],
		"clusterIPs":            addresses,
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
				v1alpha1.AnnotationMovedAt:  h.steps.now().UTC().Format(time.RFC3339Nano),
			},
		},
		"spec": spec,
	}
}

// changes are made by the functions that make the patches.
func (h *hopStep) changes() ([]engine.Change, error) {
	svc := h.entry.Service
	src, dest := h.ends()
	kept := engine.Change{Verb: "create", Object: "IPAddress " + src.String(), Body: h.reservation(src).Build()}
	released := engine.Change{Verb: "delete", Object: "IPAddress " + dest.String() + " (held)"}
	arrives := func(original *corev1.ServiceSpec) engine.Change {
		return h.patches(timeless(h.patchToClusterIP(svc, original)))
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		original, err := h.entry.OriginalSpec(svc)
		if err != nil {
			return nil, err
		}
		return []engine.Change{kept, released, arrives(original)}, nil
	}
	if h.rewrites(svc) {
		return h.changesOfRewrite(), nil
	}
	leave, err := h.patchToExternalName(svc)
	if err != nil {
		return nil, err
	}
	var changes []engine.Change
	if svc.Spec.Type == corev1.ServiceTypeNodePort {
		const nudge = "Service " + v1alpha1.SystemNamespace + "/nudge-…"
		changes = append(changes, engine.Change{Verb: "create", Object: nudge}, engine.Change{Verb: "delete", Object: nudge})
	}
	if h.routed() {
		nudge := nudgeName(svc)
		changes = append(
			changes,
			engine.Change{Verb: "create", Object: nudge},
			engine.Change{Verb: "delete", Object: nudge + " (of an earlier attempt)"},
		)
	}
	for _, c := range bridgeDeletion(h.entry.BridgeKey(), svc.Spec.Selector) {
		changes = append(
			changes,
			engine.Change{Verb: c.Verb, Object: c.Object + " (instead, if the Service may not move any more by then)"},
		)
	}
	memo := engine.Change{Verb: "create", Object: "IPAddress " + bridge.MemoAddress(svc.UID).String() + " (what is noted of the Service)"}
	return append(changes, memo, released, h.patches(timeless(leave)), arrives(&svc.Spec), kept), nil
}

func (h *hopStep) patches(body map[string]any) engine.Change {
	return engine.Change{Verb: "patch", Object: "Service " + h.entry.Key().String(), Body: body}
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
