package hop

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/release"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// attempt is one write of a hop.
type attempt struct {
	*hopStep
	svc      *corev1.Service
	reserved bool
}

// start does all that may take time before the first patch: between the two everyone who watches
// sees a Service of type ExternalName for one round trip.
func (a *attempt) start(ctx context.Context) error {
	if err := a.reserveTarget(ctx); err != nil {
		return err
	}
	if err := a.checkBridge(ctx); err != nil {
		return err
	}
	if err := a.recordOriginal(ctx); err != nil {
		return err
	}
	if a.byEtcd(a.svc) {
		return a.exchange(ctx)
	}
	nodePorts := a.svc.Spec.Type == corev1.ServiceTypeNodePort
	if nodePorts {
		done, err := a.delayKubeProxies(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = done(context.WithoutCancel(ctx)) }() // it goes with its namespace at the latest
	}
	if a.routed() {
		if err := a.throttle.Begin(ctx, a.beside...); err != nil {
			return err
		}
	}
	if nodePorts || a.routed() { // that took a while
		if err := a.proven(ctx); err != nil {
			return err
		}
	}
	return a.changeClusterIP(ctx)
}

// routed reports whether ingress controllers are to see nothing of the hop.
func (h *hopStep) routed() bool { return len(h.beside) > 0 }

// checkBridge repairs and proves the bridge right before the Service leaves, if either has changed.
func (a *attempt) checkBridge(ctx context.Context) error {
	err := a.proven(ctx)
	gone := a.progress.KeepsItself() && errors.As(err, new(*bridge.MissingError)) // with the end of its batch
	if !gone && !errors.As(err, new(*bridge.DriftError)) {
		return err
	}
	if err := a.repairBridge(ctx); err != nil {
		return err
	}
	return a.proven(ctx)
}

func (a *attempt) repairBridge(ctx context.Context) error {
	if err := a.bridgeOf(a.progress, a.svc).Ensure(ctx, a.Client, a.Pool); err != nil {
		return err
	}
	return a.Barriers.pass(ctx, a.ID())
}

func (a *attempt) proven(ctx context.Context) error {
	have, err := a.bridgeOf(a.progress, a.svc).Proven(ctx, a.Client, a.endpoints)
	a.progress.bridge = have
	if err != nil {
		return fmt.Errorf("service %s must not leave its address: %w", a.progress.Key(), err)
	}
	return nil
}

// reserveTarget reserves the target again that an earlier attempt has given back.
func (h *hopStep) reserveTarget(ctx context.Context) error {
	p := h.progress
	_, dest := h.ends()
	if _, reserved := p.Reserved[dest]; reserved {
		return nil
	}
	if h.to == engine.Forward {
		return h.reserveNew(ctx, p)
	}
	target := h.hold(dest)
	err := target.Create(ctx, h.Client)
	if p.ownsAddress(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("service %s: its old address: %w", p.Key(), err)
	}
	p.recordHold(target)
	return nil
}

// recordOriginal keeps the spec and both addresses where only replumb and the control plane write;
// the Service itself others may write, and neither address is reserved while it has none.
func (a *attempt) recordOriginal(ctx context.Context) error {
	p := a.progress
	if err := a.noteOriginal(); err != nil {
		return err
	}
	memo, have := a.memo(), p.RecordedMemo()
	if have.Original == memo.Original && have.Old == memo.Old && have.Target == memo.New && have.Heading == memo.Heading {
		return nil
	}
	return a.writeMemo(ctx, memo)
}

func (a *attempt) memo() *bridge.Hold {
	_, dest := a.ends()
	return a.progress.Memo(a.Migration, dest)
}

// noteOriginal notes the spec with which the Service arrives.
func (a *attempt) noteOriginal() (err error) {
	p, arrives := a.progress, a.progress.AsOwned(a.svc)
	if p.KeepsItself() && !p.Exchanges() {
		src, _ := a.ends()
		arrives = arrives.DeepCopy()
		ownaddress.Add(arrives, src, p.Overlap.Form)
	}
	if p.Original, err = services.OriginalOf(&arrives.Spec); err != nil {
		return fmt.Errorf("service %s: %w", p.Key(), err)
	}
	return nil
}

func (a *attempt) writeMemo(ctx context.Context, memo *bridge.Hold) error {
	if err := memo.Note(ctx, a.Client); err != nil {
		return err
	}
	a.progress.recordHold(memo)
	return nil
}

// changeClusterIP sends both patches, with nothing in between that watchers would wait for.
func (a *attempt) changeClusterIP(ctx context.Context) error {
	original, err := a.progress.OriginalSpec(a.svc)
	if err != nil {
		return err
	}
	select {
	case a.inTransit <- struct{}{}:
		defer func() { <-a.inTransit }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := a.releaseTarget(ctx); err != nil {
		return err
	}
	if err := a.clearClusterIP(ctx); err != nil {
		_, dest := a.ends()
		if target := a.hold(dest); target.Create(ctx, a.Client) == nil { // else the next attempt does, if there is one
			a.progress.recordHold(target)
		}
		return err
	}
	defer a.throttle.Arrived()
	return a.setClusterIP(ctx, original)
}

// clearClusterIP sends the first patch, after which only the bridge answers at the old address.
func (a *attempt) clearClusterIP(ctx context.Context) error {
	if a.routed() {
		if err := a.throttle.Open(); err != nil {
			return err
		}
	}
	patch, err := a.patchToExternalName(a.svc)
	if err != nil {
		return err
	}
	return a.send(ctx, patch)
}

// resume goes on between the patches: first the old address is reserved.
func (a *attempt) resume(ctx context.Context) error {
	if err := a.reserveMeanwhile(ctx); err != nil {
		return err
	}
	if _, dest := a.ends(); a.progress.RecordedMemo().Heading != dest {
		if err := a.writeMemo(ctx, a.memo()); err != nil {
			return err
		}
	}
	original, err := a.progress.OriginalSpec(a.svc)
	if err != nil {
		return err
	}
	if err := a.releaseTarget(ctx); err != nil {
		return err
	}
	return a.setClusterIP(ctx, original)
}

// releaseTarget gives the target back, so that the API server can give it to the Service.
func (h *hopStep) releaseTarget(ctx context.Context) error {
	_, dest := h.ends()
	if err := h.hold(dest).Release(ctx, h.Client); err != nil {
		return err
	}
	delete(h.progress.Reserved, dest)
	return nil
}

// reserveSource reserves the address left behind; the proof finds another Service that took it.
func (a *attempt) reserveSource(ctx context.Context) error {
	if a.reserved {
		return nil
	}
	src, _ := a.ends()
	left := a.progress.ReservationLeft(a.Migration, src)
	err := left.PlaceAfter(ctx, a.Client, a.progress.Key())
	if err == nil && left.Heading.IsValid() { // since before the Service had arrived
		left = a.progress.ReservationLeft(a.Migration, src)
		err = left.Note(ctx, a.Client)
	}
	if err == nil {
		a.progress.recordHold(left)
		a.reserved = true
	}
	if IsTaken(err) {
		return nil
	}
	return err
}

// reserveMeanwhile reserves the address left behind while the Service has none, for as long as that
// takes; the proof finds another Service that took it.
func (a *attempt) reserveMeanwhile(ctx context.Context) error {
	src, dest := a.ends()
	p := a.progress
	marked := func() *bridge.Hold {
		left := p.ReservationLeft(a.Migration, src)
		left.Heading = dest
		return left
	}
	left := marked()
	err := left.PlaceAfter(ctx, a.Client, p.Key())
	if err == nil { // it may be there in another form
		left = marked()
		err = left.Note(ctx, a.Client)
	}
	if err == nil {
		p.recordHold(left)
	}
	if IsTaken(err) {
		return nil
	}
	return err
}

func (a *attempt) send(ctx context.Context, patch map[string]any) error {
	key := a.progress.Key()
	body, err := json.Marshal(patch)
	if err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	err = a.Client.Patch(ctx, a.svc, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsNotFound(err) { // the next look finds it gone, and nothing to do
		return engine.NotYet("service %s has just been deleted", key)
	}
	if err != nil {
		return fmt.Errorf("service %s: %w", key, err)
	}
	return nil
}

// PatchToExternalName is the first patch of a Service's way there, as it will be sent.
func PatchToExternalName(migration, domain string, e *services.Entry) (map[string]any, error) {
	h := &hopStep{
		Steps: &Steps{Migration: migration, Domain: domain}, progress: &Progress{Entry: *e}, to: engine.Forward,
	}
	return h.patchToExternalName(e.Service)
}

// patchToExternalName carries all that is needed to go on from the object alone.
func (h *hopStep) patchToExternalName(svc *corev1.Service) (map[string]any, error) {
	spec, err := json.Marshal(h.progress.AsOwned(svc).Spec)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", h.progress.Key(), err)
	}
	notes := map[string]any{
		v1alpha1.LabelMigration:         h.Migration,
		v1alpha1.AnnotationOldIP:        h.progress.Old.String(),
		v1alpha1.AnnotationTargetIP:     h.progress.New.String(),
		v1alpha1.AnnotationOriginalSpec: string(spec),
		v1alpha1.AnnotationMovedAt:      nil,
	}
	if h.to == engine.Backward { // pods started since then may carry the address that is left now
		notes[v1alpha1.AnnotationAwaySince] = svc.Annotations[v1alpha1.AnnotationMovedAt]
	}
	cleared := map[string]any{
		"type":                  corev1.ServiceTypeExternalName,
		"externalName":          h.externalName(svc),
		"clusterIP":             nil,
		"clusterIPs":            nil,
		"ipFamilies":            nil,
		"ipFamilyPolicy":        nil,
		"internalTrafficPolicy": nil,
		"externalTrafficPolicy": nil,
	}
	if len(svc.Spec.ExternalIPs) > 0 { // of an earlier way: no others hop
		cleared["externalIPs"] = nil
	}
	return map[string]any{
		"metadata": map[string]any{"resourceVersion": svc.ResourceVersion, "annotations": notes},
		"spec":     cleared,
	}, nil
}

// externalName is the name of the bridge, or, for API servers, which go by externalName
// (ResolveCluster in k8s.io/apiserver pkg/util/proxy/proxy.go) and seldom ask cluster DNS, the old
// address. No IPv6 address is a valid externalName.
func (h *hopStep) externalName(svc *corev1.Service) string {
	if h.progress.Called && h.progress.Old.Is4() {
		return h.progress.Old.String()
	}
	return services.BridgeHost(svc, h.Domain)
}

// patchToClusterIP names the target again, since another Service may have taken the first one.
func (h *hopStep) patchToClusterIP(svc *corev1.Service, original *corev1.ServiceSpec) map[string]any {
	_, dest := h.ends()
	return bridge.Arrival{Service: svc, Original: original, At: dest, Target: h.progress.New, Now: h.Now()}.Patch()
}

func (h *hopStep) changes() ([]engine.Change, error) {
	p, svc := h.progress, h.progress.Service
	src, dest := h.ends()
	kept := engine.Change{Verb: "create", Object: "IPAddress " + src.String(), Body: h.hold(src).Build()}
	released := engine.Change{Verb: "delete", Object: "IPAddress " + dest.String() + " (held)"}
	arrives := func(original *corev1.ServiceSpec) engine.Change {
		return h.patched(timeless(h.patchToClusterIP(svc, original)))
	}
	if svc.Spec.Type == corev1.ServiceTypeExternalName {
		original, err := p.OriginalSpec(svc)
		if err != nil {
			return nil, err
		}
		return []engine.Change{kept, released, arrives(original)}, nil
	}
	if h.byEtcd(svc) {
		return h.etcd().Changes(), nil
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
		changes = append(changes,
			engine.Change{Verb: "create", Object: nudge},
			engine.Change{Verb: "delete", Object: nudge + " (of an earlier attempt)"})
	}
	for _, c := range release.BridgeDeletion(p.BridgeKey(), svc.Spec.Selector) {
		c.Object += " (instead, if the Service may not move any more by then)"
		changes = append(changes, c)
	}
	memo := engine.Change{Verb: "create", Object: "IPAddress " + bridge.MemoAddress(svc.UID).String() + " (what is noted of the Service)"}
	return append(changes, memo, released, h.patched(timeless(leave)), arrives(&svc.Spec), kept), nil
}

func (h *hopStep) patched(body map[string]any) engine.Change {
	return engine.Change{Verb: "patch", Object: "Service " + h.progress.Key().String(), Body: body}
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
