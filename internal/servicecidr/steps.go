package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/addr"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/engine"
)

func (t Tools) now() time.Time {
	if t.Now != nil {
		return t.Now()
	}
	return time.Now()
}

// checkStep stops a run on blocking findings.
type checkStep struct {
	findings check.Findings
}

func (*checkStep) ID() string    { return "check" }
func (*checkStep) Title() string { return "Check the cluster" }
func (s *checkStep) State(context.Context) (engine.State, error) {
	if blocking := s.findings.Blocking(); len(blocking) > 0 {
		return engine.Blocked, &check.BlockedError{Findings: blocking}
	}
	return engine.Done, nil
}
func (*checkStep) Do(context.Context) error     { return nil }
func (*checkStep) Verify(context.Context) error { return nil }

// bridgeStep makes the old address answer twice over before the Service leaves it.
type bridgeStep struct {
	planner *Planner
	entry   *Entry
}

var _ engine.Previewer = (*bridgeStep)(nil)

func (s *bridgeStep) ID() string { return "bridge/" + s.entry.Key().String() }
func (s *bridgeStep) Title() string {
	return fmt.Sprintf("Bridge %s on %s and %s", s.entry.Key(), s.entry.Old, s.entry.New)
}
func (s *bridgeStep) client() client.Client { return s.planner.Tools.Cluster }

func (s *bridgeStep) State(ctx context.Context) (engine.State, error) {
	svc, err := readService(ctx, s.client(), s.entry)
	if err != nil || svc == nil {
		return engine.Done, err
	}
	err = s.planner.bridgeOf(s.entry, svc).Proven(ctx, s.client())
	var missing *bridge.MissingError
	var drift *bridge.DriftError
	switch {
	case err == nil:
		return engine.Done, nil
	case errors.As(err, &missing), errors.As(err, &drift), engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Blocked, err
}

func (s *bridgeStep) Do(ctx context.Context) error {
	svc, err := readService(ctx, s.client(), s.entry)
	if err != nil || svc == nil {
		return err
	}
	if svc.Spec.ClusterIP != s.entry.New.String() {
		if err := s.planner.place(ctx, s.entry); err != nil {
			return err
		}
	}
	return s.planner.bridgeOf(s.entry, svc).Ensure(ctx, s.client(), s.planner.Survey.Pool)
}

func (s *bridgeStep) Verify(ctx context.Context) error {
	svc, err := readService(ctx, s.client(), s.entry)
	if err != nil || svc == nil {
		return err
	}
	return s.planner.bridgeOf(s.entry, svc).Proven(ctx, s.client())
}

func (s *bridgeStep) Preview() ([]engine.Change, error) {
	b := s.planner.bridgeOf(s.entry, s.entry.Service)
	hold := &bridge.Hold{Migration: s.planner.spec().Name, Address: s.entry.New, Bridge: b.Key()}
	verb := "create"
	if s.entry.Bridge != nil {
		verb, b.Form = "update", bridge.FormOf(s.entry.Bridge)
	}
	var changes []engine.Change
	if s.entry.Place != Moved {
		changes = append(changes, engine.Change{Verb: "create", Object: "IPAddress " + s.entry.New.String(), Body: hold.Build()})
	}
	return append(changes, engine.Change{Verb: verb, Object: "Service " + b.Key().String(), Body: b.Build()}), nil
}

// place holds the target of a Service, going to the next free address as often as somebody else is found to have it.
func (p *Planner) place(ctx context.Context, e *Entry) error {
	for {
		if e.New.IsValid() {
			h := &bridge.Hold{Migration: p.spec().Name, Address: e.New, Bridge: e.BridgeKey()}
			err := h.Place(ctx, p.Tools.Cluster)
			if err == nil || !isTakenBySomebody(err) {
				return err
			}
		}
		next, err := p.Survey.Pool.Lowest()
		if err != nil {
			return fmt.Errorf("service %s: %w", e.Key(), err)
		}
		e.New = next
	}
}

func isTakenBySomebody(err error) bool {
	var taken *bridge.TakenError
	return errors.As(err, &taken)
}

// pauseStep lets time pass.
type pauseStep struct {
	id, title string
	length    time.Duration
	now       func() time.Time
	until     time.Time
}

func (s *pauseStep) ID() string              { return s.id }
func (s *pauseStep) Title() string           { return s.title }
func (s *pauseStep) Waits()                  {}
func (s *pauseStep) Deadline() time.Duration { return s.length + time.Minute }
func (s *pauseStep) State(context.Context) (engine.State, error) {
	return engine.Pending, nil
}

func (s *pauseStep) Do(context.Context) error {
	s.until = s.clock().Add(s.length)
	return nil
}

func (s *pauseStep) Verify(context.Context) error {
	if left := s.until.Sub(s.clock()); left > 0 {
		return engine.NotYet("until %s", s.until.Format(time.TimeOnly))
	}
	return nil
}
func (s *pauseStep) clock() time.Time { return Tools{Now: s.now}.now() }

// drainStep waits until the latest move is long enough ago. When that was is written on the Services.
type drainStep struct {
	tools     Tools
	migration string
	length    time.Duration
}

func (s *drainStep) ID() string { return "drain" }
func (s *drainStep) Title() string {
	return fmt.Sprintf("Wait until the last move is %s ago", s.length)
}
func (s *drainStep) Waits()                  {}
func (s *drainStep) Deadline() time.Duration { return s.length + time.Minute }
func (s *drainStep) State(ctx context.Context) (engine.State, error) {
	err := s.Verify(ctx)
	if engine.Retryable(err) {
		return engine.Pending, nil
	}
	return engine.Done, err
}
func (s *drainStep) Do(context.Context) error { return nil }
func (s *drainStep) Verify(ctx context.Context) error {
	services := &corev1.ServiceList{}
	if err := s.tools.Cluster.List(ctx, services); err != nil {
		return fmt.Errorf("listing services: %w", err)
	}
	var latest time.Time
	for i := range services.Items {
		notes := services.Items[i].Annotations
		at, err := time.Parse(time.RFC3339Nano, notes[v1alpha1.AnnotationMovedAt])
		if err == nil && notes[v1alpha1.LabelMigration] == s.migration && at.After(latest) {
			latest = at
		}
	}
	if until := latest.Add(s.length); until.After(s.tools.now()) {
		return engine.NotYet("until %s", until.Local().Format(time.TimeOnly))
	}
	return nil
}

// rangeStep adds a target range.
type rangeStep struct {
	tools     Tools
	migration string
	name      string
	cidr      netip.Prefix
}

var (
	_ engine.Undoer    = (*rangeStep)(nil)
	_ engine.Previewer = (*rangeStep)(nil)
)

func (s *rangeStep) ID() string    { return "extend/" + s.name }
func (s *rangeStep) Title() string { return fmt.Sprintf("Add the Service range %s", s.cidr) }

// Undo implements engine.Undoer.
func (s *rangeStep) Undo() engine.Step { return &withdrawStep{s} }

// find returns a ServiceCIDR with exactly this range, whoever made it.
func (s *rangeStep) find(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	all := &networkingv1.ServiceCIDRList{}
	if err := s.tools.Cluster.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing servicecidrs: %w", err)
	}
	for i := range all.Items {
		for _, text := range all.Items[i].Spec.CIDRs {
			if text == s.cidr.String() {
				return &all.Items[i], nil
			}
		}
	}
	return nil, nil
}

func (s *rangeStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.find(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || !rangeReady(have) {
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *rangeStep) Do(ctx context.Context) error {
	have, err := s.find(ctx)
	switch {
	case err != nil:
		return err
	case have != nil && !have.DeletionTimestamp.IsZero():
		return engine.NotYet("servicecidr %s is being deleted", have.Name)
	case have != nil:
		return nil
	}
	if err := s.tools.Cluster.Create(ctx, s.build(), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("servicecidr %s: %w", s.name, err)
	}
	return nil
}

func (s *rangeStep) build() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   s.name,
			Labels: map[string]string{v1alpha1.LabelMigration: s.migration, v1alpha1.LabelRole: v1alpha1.RoleRange},
		},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{s.cidr.String()}},
	}
}

// Verify waits for the controller manager, which sets Ready.
func (s *rangeStep) Verify(ctx context.Context) error {
	have, err := s.find(ctx)
	if err != nil {
		return err
	}
	if have == nil || !readyCondition(have) {
		return engine.NotYet("servicecidr %s is not ready", s.name)
	}
	return nil
}

func readyCondition(c *networkingv1.ServiceCIDR) bool {
	return len(c.Status.Conditions) > 0 && rangeReady(c)
}

// Preview implements engine.Previewer.
func (s *rangeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "ServiceCIDR " + s.name, Body: s.build()}}, nil
}

// handOverStep makes a target range the cluster's own, once the migration is final: the next migration may empty it.
type handOverStep struct {
	of *rangeStep
}

func (s *handOverStep) ID() string { return "hand-over/" + s.of.name }
func (s *handOverStep) Title() string {
	return fmt.Sprintf("Hand the Service range %s over", s.of.cidr)
}

func (s *handOverStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.of.find(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || have.Labels[v1alpha1.LabelMigration] != s.of.migration {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *handOverStep) Do(ctx context.Context) error {
	have, err := s.of.find(ctx)
	if err != nil || have == nil {
		return err
	}
	forget := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:null,%q:null}}}`,
		have.ResourceVersion, v1alpha1.LabelMigration, v1alpha1.LabelRole)
	return s.of.tools.Cluster.Patch(ctx, have, client.RawPatch(types.MergePatchType, forget), client.FieldOwner(v1alpha1.FieldManager))
}

func (s *handOverStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("servicecidr %s still says it belongs to the migration", s.of.name)
	}
	return err
}

// withdrawStep removes a target range that the migration added.
type withdrawStep struct {
	of *rangeStep
}

func (s *withdrawStep) ID() string    { return "withdraw/" + s.of.name }
func (s *withdrawStep) Title() string { return fmt.Sprintf("Remove the Service range %s", s.of.cidr) }

func (s *withdrawStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.get(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || have.Labels[v1alpha1.LabelMigration] != s.of.migration {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *withdrawStep) get(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	have := &networkingv1.ServiceCIDR{}
	err := s.of.tools.Cluster.Get(ctx, client.ObjectKey{Name: s.of.name}, have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("servicecidr %s: %w", s.of.name, err)
	}
	return have, nil
}

func (s *withdrawStep) Do(ctx context.Context) error {
	have, err := s.get(ctx)
	if err != nil || have == nil {
		return err
	}
	return client.IgnoreNotFound(s.of.tools.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}

// Verify waits until the range is gone. The API server keeps it as long as an address in it is in use.
func (s *withdrawStep) Verify(ctx context.Context) error {
	have, err := s.get(ctx)
	if err != nil || have == nil {
		return err
	}
	holders, err := s.holders(ctx)
	if err != nil {
		return err
	}
	if len(holders) == 0 {
		return engine.NotYet("servicecidr %s is still being removed", s.of.name)
	}
	return engine.NotYet("servicecidr %s is still used by %s", s.of.name, strings.Join(holders, ", "))
}

func (s *withdrawStep) holders(ctx context.Context) ([]string, error) {
	all := &networkingv1.IPAddressList{}
	if err := s.of.tools.Cluster.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing ipaddresses: %w", err)
	}
	var holders []string
	for i := range all.Items {
		a, err := netip.ParseAddr(all.Items[i].Name)
		if err == nil && addr.Contains([]netip.Prefix{s.of.cidr}, a) {
			holders = append(holders, bridge.ParentOf(&all.Items[i])+" ("+a.String()+")")
		}
	}
	return holders, nil
}
