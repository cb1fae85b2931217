package hop

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

func (a *attempt) setClusterIP(ctx context.Context, original *corev1.ServiceSpec) error {
	_, dest := a.ends()
	err := a.send(ctx, a.patchToClusterIP(a.svc, original))
	switch refused := admission.Of(err); {
	case bridge.IsTaken(err):
		return a.retarget(ctx, dest)
	case bridge.IsPortTaken(err):
		return a.arriveWithoutPorts(ctx, original, err)
	case refused == nil || engine.Retryable(bridge.NotReadyYet(err)):
		return bridge.NotReadyYet(err)
	case refused.Quota, refused.Down:
		return a.mayYet(refused)
	case a.progress.KeepsItself():
		return a.keepBridge(ctx, refused)
	default:
		return stranded(refused)
	}
}

// keepBridge arrives with the old address left to the bridge, where by now it is refused on the
// Service: one without an address must not wait for that.
func (a *attempt) keepBridge(ctx context.Context, refused *admission.Refusal) error {
	p := a.progress
	src, _ := a.ends()
	arrives, err := p.OriginalSpec(a.svc)
	if err != nil {
		return err
	}
	svc := &corev1.Service{Spec: *arrives}
	ownaddress.Remove(svc, src)
	p.Overlap = services.OverlapChoice{Form: v1alpha1.OverlapBridge, Why: "its own is refused: " + refused.Error()}
	delete(p.Reserved, src) // in the other form, if it is
	return a.arriveAs(ctx, &svc.Spec)
}

// arriveAs has a Service arrive with less than it left with, and notes that first.
func (a *attempt) arriveAs(ctx context.Context, spec *corev1.ServiceSpec) (err error) {
	p := a.progress
	if p.Original, err = services.OriginalOf(spec); err != nil {
		return fmt.Errorf("service %s: %w", p.Key(), err)
	}
	if err := a.reserveMeanwhile(ctx); err != nil {
		return err
	}
	if err := a.writeMemo(ctx, a.memo()); err != nil {
		return err
	}
	return a.setClusterIP(ctx, spec)
}

// keepLeft has a Service that has arrived answer at the address it left, if that was taken off.
func (a *attempt) keepLeft(ctx context.Context) error {
	src, _ := a.ends()
	if a.keeps(a.svc, src) == nil {
		return nil
	}
	if err := a.reserveSource(ctx); err != nil {
		return err
	}
	return (&ownStep{Steps: a.Steps, progress: a.progress}).add(ctx, a.svc)
}

// retarget has bridge and Service go to the next free address, after another took the target.
func (a *attempt) retarget(ctx context.Context, dest netip.Addr) error {
	if err := a.reserveMeanwhile(ctx); err != nil {
		return err
	}
	if err := a.checkOtherFamily(ctx); err != nil {
		return err
	}
	p := a.progress
	if a.to == engine.Backward {
		return stranded(&bridge.TakenError{Address: dest, By: "another Service meanwhile"})
	}
	if err := a.reserveNew(ctx, p); err != nil {
		return err
	}
	if err := a.writeMemo(ctx, a.memo()); err != nil {
		return err
	}
	target := map[string]any{"metadata": map[string]any{
		"resourceVersion": a.svc.ResourceVersion,
		"annotations":     map[string]any{v1alpha1.AnnotationTargetIP: p.New.String()},
	}}
	if err := a.send(ctx, target); err != nil {
		return err
	}
	if err := a.repairBridge(ctx); err != nil {
		return err
	}
	return engine.NotYet("address %s of service %s was taken by another Service; going to %s", dest, p.Key(), p.New)
}

// checkOtherFamily fails if another Service was given the address of the other family. The control
// plane may have given it back too early.
func (a *attempt) checkOtherFamily(ctx context.Context) error {
	kept := a.progress.Kept(a.svc)
	if !kept.IsValid() {
		return nil
	}
	asked := a.hold(kept)
	err := asked.PlaceAfter(ctx, a.Client, a.progress.Key())
	if IsTaken(err) {
		return stranded(fmt.Errorf("it cannot keep its address %s, at which its bridge goes on answering: %w", kept, err))
	}
	if err != nil {
		return err
	}
	return asked.Release(ctx, a.Client)
}
