package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

	steps *Steps
	entry *Entry
	to    engine.Direction
	// beside are the Services that ingress controllers lead to and that hop at the same time, this one among them; none, if they do not lead here.
	beside []bridge.Routed
	// began is when the first patch was about to be sent, for the observer.
	began time.Time
	// left is why the Service does not hop, once it was found that it may not.
	left string
	// arrived is the Service as patch B was answered, for the first proof; kept says that the address it left was reserved before.
	arrived *corev1.Service
	kept    bool
}

func (h *hopStep) Title() string {
	if h.left != "" {
		return fmt.Sprintf("Leave %s alone: it %s", h.entry.Key(), h.left)
	}
	src, dest := h.ends()
	how := ""
	if h.entry.StrategyText() == v1alpha1.StrategyEtcd {
		how = " in etcd"
	}
	if kept := h.entry.Kept(h.entry.Service); kept.IsValid() {
		how += fmt.Sprintf("; it keeps %s", kept)
	}
	if risk := h.steps.strategies.Risk(h.entry); risk != "" {
		how += "; " + risk
	}
	return fmt.Sprintf("Move %s from %s to %s%s", h.entry.Key(), src, dest, how)
}

func (h *hopStep) ends() (src, dest netip.Addr) { return h.entry.Ends(h.to) }

// look finds nothing to do for a Service that is gone: its bridge is removed as an orphan.
func (h *hopStep) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	svc, err := readService(ctx, h.steps.client, h.entry)
	if err != nil || svc == nil {
		return engine.Done, nil, err
	}
	src, dest := h.ends()
	switch {
	case IsAt(svc, dest) && h.sourceReserved(ctx, src) == nil:
		return engine.Done, svc, nil
	case IsAt(svc, dest), IsInTransit(svc, h.steps.domain), IsAt(svc, src), h.reasonToStay(svc) != "":
		return engine.Pending, svc, nil
	}
	return engine.Blocked, svc, fmt.Errorf("service %s is now of type %s at %q, and was to move from %s to %s",
		h.entry.Key(), svc.Spec.Type, svc.Spec.ClusterIP, src, dest)
}

// sourceReserved returns nil if the address that the Service has left is reserved.
func (h *hopStep) sourceReserved(ctx context.Context, src netip.Addr) error {
	if h.kept {
		return nil
	}
	return h.reservation(src).Check(ctx, h.steps.client)
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

func (h *hopStep) write(ctx context.Context, svc *corev1.Service) (err error) {
	_, dest := h.ends()
	h.left, h.As = "", engine.RoleMove
	switch reason := h.reasonToStay(svc); {
	case IsAt(svc, dest): // an address is left to be reserved
	case reason != "":
		h.left, h.As = reason, engine.RoleOwn // nothing moves
		return h.skip(ctx, svc)
	}
	h.arrived, h.kept, h.entry.latest = nil, false, answers{}
	if h.began.IsZero() {
		h.began = h.steps.now()
	}
	switch {
	case IsAt(svc, dest):
	case IsInTransit(svc, h.steps.domain):
		err = h.resume(ctx, svc)
	default:
		err = h.start(ctx, svc)
	}
	if err != nil {
		return err
	}
	h.arrived, h.entry.latest.service = svc, svc
	return h.reserveSource(ctx)
}

// checkBridge looks at the bridge, right before the Service leaves. It brings the bridge in line with a Service that was changed
// after its bridge was made, and proves it again.
func (h *hopStep) checkBridge(ctx context.Context, svc *corev1.Service) error {
	err := h.proven(ctx, svc)
	if !errors.As(err, new(*bridge.DriftError)) {
		return err
	}
	if err := h.repairBridge(ctx, svc); err != nil {
		return err
	}
	return h.proven(ctx, svc)
}

// repairBridge brings the bridge in line, and proves that nodes know it.
func (h *hopStep) repairBridge(ctx context.Context, svc *corev1.Service) error {
	t := h.steps
	if err := t.bridgeOf(h.entry, svc).Ensure(ctx, t.client, t.pool); err != nil {
		return err
	}
	return t.barriers.pass(ctx, h.ID())
}

// proven returns nil only if the bridge is what the Service needs.
func (h *hopStep) proven(ctx context.Context, svc *corev1.Service) error {
	have, err := h.steps.bridgeOf(h.entry, svc).Proven(ctx, h.steps.client, h.steps.endpoints)
	h.entry.latest.bridge = have
	if err != nil {
		return fmt.Errorf("service %s must not leave its address: %w", h.entry.Key(), err)
	}
	return nil
}

func (h *hopStep) reservation(a netip.Addr) *bridge.Hold {
	return h.entry.reservation(h.steps.migration, a)
}

// landed is the Service after its hop: as patch B was answered, once, and else as it is read.
func (h *hopStep) landed(ctx context.Context) (*corev1.Service, error) {
	if svc := h.arrived; svc != nil {
		h.arrived = nil
		return svc, nil
	}
	return readService(ctx, h.steps.client, h.entry)
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
	src, _ := h.ends()
	original, err := h.entry.OriginalSpec(svc)
	if err != nil {
		return err
	}
	if err := h.verifySpec(svc, original); err != nil {
		return err
	}
	if !h.kept {
		if err := h.reservation(src).Check(ctx, h.steps.client); err != nil {
			return fmt.Errorf("service %s has moved, but its address %s is not kept: %w", h.entry.Key(), src, err)
		}
	}
	if err := h.steps.endpoints.Same(ctx, h.entry.Key(), h.entry.BridgeKey()); err != nil {
		return err
	}
	h.report(svc)
	return nil
}

// verifySpec returns nil if the Service is at its target, and has what it had.
func (h *hopStep) verifySpec(svc *corev1.Service, original *corev1.ServiceSpec) error {
	_, dest := h.ends()
	s := &svc.Spec
	switch {
	case !IsAt(svc, dest) || s.ExternalName != "":
		return fmt.Errorf("service %s is of type %s at %q, want %s", h.entry.Key(), s.Type, s.ClusterIP, dest)
	case !equality.Semantic.DeepEqual(s.IPFamilies, original.IPFamilies),
		!equality.Semantic.DeepEqual(s.IPFamilyPolicy, original.IPFamilyPolicy),
		!equality.Semantic.DeepEqual(s.InternalTrafficPolicy, original.InternalTrafficPolicy):
		return fmt.Errorf("service %s lost its ipFamilies, ipFamilyPolicy or internalTrafficPolicy", h.entry.Key())
	case Besides(ParseAddresses(original.ClusterIPs), dest) != Besides(AddressesOf(svc), dest):
		return fmt.Errorf("service %s is at %v, and did not keep its other address", h.entry.Key(), s.ClusterIPs)
	case original.Type == corev1.ServiceTypeNodePort &&
		(!equality.Semantic.DeepEqual(s.Ports, original.Ports) || s.ExternalTrafficPolicy != original.ExternalTrafficPolicy):
		return fmt.Errorf("service %s lost its node ports or externalTrafficPolicy", h.entry.Key())
	}
	return nil
}

// report tells the observer that the Service has arrived, unless it is one of replumb's own.
func (h *hopStep) report(svc *corev1.Service) {
	observer := h.steps.observer
	if observer == nil || h.began.IsZero() || svc.Labels[v1alpha1.LabelRole] != "" {
		return
	}
	src, dest := h.ends()
	now := h.steps.now()
	observer.Moved(h.entry.Key().String(), src.String(), dest.String(), h.entry.StrategyText(), now, now.Sub(h.began))
}
