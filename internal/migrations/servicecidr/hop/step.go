package hop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/release"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// hopStep changes the ClusterIP of a Service by two patches, since it can be changed only from and
// to type ExternalName (validateServiceClusterIPsRelatedFields and ValidateServiceUpdate in
// k8s.io/kubernetes pkg/apis/core/validation/validation.go; docs/design/hop.md). Each patch carries
// the resourceVersion that was seen.
type hopStep struct {
	engine.Observed[*corev1.Service]

	*Steps
	progress *Progress
	to       engine.Direction
	// beside are the Services behind ingress controllers that hop at the same time, this one
	// included.
	beside []bridge.Routed
}

// Hop takes a Service to its other address.
func (s *Steps) Hop(e *services.Entry, to engine.Direction) engine.Step {
	return s.HopBeside(e, to, nil)
}

// HopBeside takes a Service to its other address while others hop that ingress controllers lead to.
func (s *Steps) HopBeside(e *services.Entry, to engine.Direction, beside []bridge.Routed) engine.Step {
	id := "hop/"
	if to == engine.Backward {
		id = "return/"
	}
	h := &hopStep{Steps: s, progress: s.Tracker.Of(e), to: to, beside: beside}
	h.Observed = engine.Observed[*corev1.Service]{
		Name: id + e.Key().String(), As: engine.RoleMove,
		Look: h.look, Answered: h.write, Proof: h.prove, Changes: h.changes,
		Reverse: func() engine.Step { return s.HopBeside(e, to.Opposite(), beside) },
	}
	if e.Exchanges() {
		return h.exchanged()
	}
	return h
}

func (h *hopStep) Title() string {
	p := h.progress
	switch {
	case p.skipped != "":
		return fmt.Sprintf("Leave %s alone: it %s", p.Key(), p.skipped)
	case p.stranded != "":
		return fmt.Sprintf("Leave %s to its bridge: it %s", p.Key(), p.stranded)
	}
	src, dest := h.ends()
	how := ""
	if p.StrategyText() == v1alpha1.StrategyEtcd {
		how = " in etcd"
	}
	if p.KeepsItself() {
		how += fmt.Sprintf("; it keeps %s itself, as %s", src, formText(p.Overlap.Form))
	}
	if kept := p.Kept(p.Service); kept.IsValid() {
		how += fmt.Sprintf("; it keeps %s", kept)
	}
	if risk := h.Strategies.Risk(&p.Entry); risk != "" {
		how += "; " + risk
	}
	return fmt.Sprintf("Move %s from %s to %s%s", p.Key(), src, dest, how)
}

// Note says what of a Service did not arrive with it.
func (h *hopStep) Note() string { return h.progress.remark }

func (h *hopStep) ends() (src, dest netip.Addr) { return h.progress.Ends(h.to) }

// look finds nothing to do for a Service that is gone: its bridge is removed as an orphan.
func (h *hopStep) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	svc, err := h.progress.Read(ctx, h.Client)
	if err != nil || svc == nil {
		return engine.Done, nil, err
	}
	src, dest := h.ends()
	switch {
	case services.IsAt(svc, dest) && h.keeps(svc, src) == nil && h.left(ctx, src):
		return engine.Done, svc, nil
	case services.IsAt(svc, dest), h.progress.IsInTransit(svc, h.Domain), services.IsAt(svc, src), h.mayNotMove(h.progress, svc) != "":
		return engine.Pending, svc, nil
	}
	return engine.Blocked, svc, services.ChangedError(h.progress.Key(), "is now of type %s at %q, and was to move from %s to %s",
		svc.Spec.Type, svc.Spec.ClusterIP, src, dest)
}

// left reports whether the address that the Service has left is reserved, as after a hop.
func (h *hopStep) left(ctx context.Context, src netip.Addr) bool {
	hold := h.hold(src)
	return hold.Check(ctx, h.Client) == nil && !hold.Heading.IsValid()
}

// keeps is nil for a Service that answers at an address itself, if it is to.
func (h *hopStep) keeps(svc *corev1.Service, a netip.Addr) error {
	if form, there := ownaddress.FormOf(svc, a); h.progress.KeepsItself() && (!there || form != h.progress.Overlap.Form) {
		return services.ChangedError(h.progress.Key(), "does not answer at %s", a)
	}
	return nil
}

func (h *hopStep) hold(a netip.Addr) *bridge.Hold { return h.progress.Reservation(h.Migration, a) }

// write returns a proof by the answer to the last patch.
func (h *hopStep) write(ctx context.Context, svc *corev1.Service) (func(context.Context) error, error) {
	_, dest := h.ends()
	p := h.progress
	p.skipped, p.stranded, p.answers = "", "", answers{}
	if reason := h.mayNotMove(h.progress, svc); reason != "" && !services.IsAt(svc, dest) {
		p.skipped = reason
		return noProof, h.skip(ctx, svc)
	}
	if p.began.IsZero() {
		p.began = h.Now()
	}
	var err error
	a := &attempt{hopStep: h, svc: svc}
	switch {
	case services.IsAt(svc, dest): // the address that it has left is still to be reserved
		err = a.keepLeft(ctx)
	case h.progress.IsInTransit(svc, h.Domain):
		err = a.resume(ctx)
	default:
		err = a.start(ctx)
	}
	if stranded := new(strandedError); errors.As(err, &stranded) {
		return noProof, h.strand(ctx, a, stranded)
	}
	if err != nil {
		return nil, err
	}
	p.service = svc
	if err := a.reserveSource(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return h.verify(ctx, svc, a.reserved) }, nil
}

// skip lets a Service stay that may not hop, and removes what the migration has of it. One that has
// moved keeps its bridge until finish or rollback.
func (h *hopStep) skip(ctx context.Context, svc *corev1.Service) error {
	if services.WhyAddressless(svc).Kind == "" && !services.IsAt(svc, h.progress.Old) {
		return nil
	}
	return release.Release{
		Client: h.Client, Migration: h.Migration, Entry: &h.progress.Entry, Domain: h.Domain,
		Strategies: h.Strategies,
	}.Do(ctx, svc)
}

func (h *hopStep) prove(ctx context.Context) error {
	svc, err := h.progress.Read(ctx, h.Client)
	if err != nil || svc == nil || h.progress.stranded != "" {
		return err
	}
	return h.verify(ctx, svc, false)
}

// verify looks at what a hop could have damaged, and no further: other fields may have changed.
// reserved says that the left address was just reserved.
func (h *hopStep) verify(ctx context.Context, svc *corev1.Service, reserved bool) error {
	src, _ := h.ends()
	original, err := h.progress.OriginalSpec(svc)
	if err != nil {
		return err
	}
	if err := h.verifySpec(svc, original); err != nil {
		return err
	}
	if !reserved {
		if err := h.hold(src).Check(ctx, h.Client); err != nil {
			return fmt.Errorf("service %s has moved, but its address %s is not kept: %w", h.progress.Key(), src, err)
		}
	}
	if err := h.endpoints.Same(ctx, h.progress.Key(), h.progress.BridgeKey()); err != nil {
		return err
	}
	h.report(svc)
	return nil
}

func (h *hopStep) verifySpec(svc *corev1.Service, original *corev1.ServiceSpec) error {
	src, dest := h.ends()
	s, key := &svc.Spec, h.progress.Key()
	switch {
	case !services.IsAt(svc, dest) || s.ExternalName != "":
		return services.ChangedError(key, "is of type %s at %q, want %s", s.Type, s.ClusterIP, dest)
	case !equality.Semantic.DeepEqual(s.IPFamilies, original.IPFamilies),
		!equality.Semantic.DeepEqual(s.IPFamilyPolicy, original.IPFamilyPolicy),
		!equality.Semantic.DeepEqual(s.InternalTrafficPolicy, original.InternalTrafficPolicy):
		return services.ChangedError(key, "lost its ipFamilies, ipFamilyPolicy or internalTrafficPolicy")
	case services.AddressBeside(services.ParseAddresses(original.ClusterIPs), dest) != services.AddressBeside(services.AddressesOf(svc), dest):
		return services.ChangedError(key, "is at %v, and did not keep its other address", s.ClusterIPs)
	case original.Type == corev1.ServiceTypeNodePort &&
		(!samePorts(s.Ports, original.Ports) || s.ExternalTrafficPolicy != original.ExternalTrafficPolicy):
		return services.ChangedError(key, "lost its node ports or externalTrafficPolicy")
	}
	return h.keeps(svc, src)
}

func (h *hopStep) report(svc *corev1.Service) {
	p := h.progress
	began := p.began
	p.began = time.Time{}
	if h.OnMove == nil || began.IsZero() || svc.Labels[v1alpha1.LabelRole] != "" {
		return
	}
	src, dest := h.ends()
	now := h.Now()
	h.OnMove(migration.Move{
		Object: p.Key().String(), From: src.String(), To: dest.String(), Strategy: p.StrategyText(), At: now, Took: now.Sub(began),
	})
}
