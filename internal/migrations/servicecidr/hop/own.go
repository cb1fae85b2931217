package hop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/admission"
	"github.com/replumb/replumb/internal/kube/stored"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// ownStep has a Service answer at its other address itself, in the form that was chosen for it.
// Before the move that is the address it goes to; after it, the one that it has left.
type ownStep struct {
	engine.Observed[*corev1.Service]

	*Steps
	progress *Progress
}

func (s *Steps) own(p *Progress) engine.Step {
	o := &ownStep{Steps: s, progress: p}
	o.Observed = engine.Observed[*corev1.Service]{
		Name: "own/" + p.Key().String(), Look: o.lookFirst(), Answered: o.write, Proof: o.prove, Changes: o.changes,
	}
	return o
}

func (o *ownStep) Title() string {
	p := o.progress
	beside := p.Beside(p.Service)
	if !beside.IsValid() {
		beside = p.New
	}
	return fmt.Sprintf("Have %s answer at %s itself, as %s", p.Key(), beside, formText(p.Overlap.Form))
}

func formText(form v1alpha1.OverlapForm) string {
	if form == v1alpha1.OverlapLoadBalancer {
		return "the address of a load balancer"
	}
	return "one of its externalIPs"
}

// lookFirst is a look that takes the word of the survey, or of what was last answered, once for a
// Service that is yet to answer at its other address: the patch carries the resourceVersion, and
// after a failure it is read.
func (o *ownStep) lookFirst() func(context.Context) (engine.State, *corev1.Service, error) {
	again := false
	return func(ctx context.Context) (engine.State, *corev1.Service, error) {
		svc := cmp.Or(o.progress.service, o.progress.Service)
		looked := again
		again = true
		if looked || !o.progress.Beside(svc).IsValid() || o.has(svc) == nil || o.mayNotMove(o.progress, svc) != "" {
			return o.look(ctx)
		}
		return engine.Pending, svc.DeepCopy(), nil
	}
}

func (o *ownStep) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	p := o.progress
	svc, err := p.Read(ctx, o.Client)
	if err != nil || svc == nil {
		return engine.Done, nil, err
	}
	if o.mayNotMove(o.progress, svc) != "" && !services.IsAt(svc, p.New) {
		return engine.Done, svc, nil // it is skipped when its turn to move comes
	}
	if !p.Beside(svc).IsValid() {
		return engine.Blocked, svc, services.ChangedError(p.Key(), "is now of type %s at %q, neither at %s nor at %s",
			svc.Spec.Type, svc.Spec.ClusterIP, p.Old, p.New)
	}
	if o.answers(ctx, svc) == nil {
		p.service = svc
		return engine.Done, svc, nil
	}
	return engine.Pending, svc, nil
}

// has is nil if a Service answers at its other address.
func (o *ownStep) has(svc *corev1.Service) error {
	p := o.progress
	beside := p.Beside(svc)
	if form, there := ownaddress.FormOf(svc, beside); !there || form != p.Overlap.Form {
		return services.ChangedError(p.Key(), "does not answer at %s", beside)
	}
	return nil
}

// answers is has, and that nobody else is given the address.
func (o *ownStep) answers(ctx context.Context, svc *corev1.Service) error {
	if err := o.has(svc); err != nil {
		return err
	}
	return o.progress.Reservation(o.Migration, o.progress.Beside(svc)).Check(ctx, o.Client)
}

// write returns a proof by the answer to its patch.
func (o *ownStep) write(ctx context.Context, svc *corev1.Service) (func(context.Context) error, error) {
	if err := o.add(ctx, svc); err != nil {
		return nil, err
	}
	o.progress.service = svc
	return func(context.Context) error { return o.has(svc) }, nil
}

func (o *ownStep) add(ctx context.Context, svc *corev1.Service) error {
	p := o.progress
	if err := p.noteOwned(svc); err != nil {
		return err
	}
	if err := o.reserve(ctx, svc); err != nil {
		return err
	}
	beside := p.Beside(svc)
	if !cidr.Contains(o.Within, beside) {
		return &bridge.OutsideError{Name: p.Key().String(), Address: beside}
	}
	return ownaddress.Write(ctx, o.Client, svc, o.wanted(svc))
}

// reserve keeps the other address from being given to others before the Service answers there.
func (o *ownStep) reserve(ctx context.Context, svc *corev1.Service) error {
	p := o.progress
	beside := p.Beside(svc)
	if _, reserved := p.Reserved[beside]; reserved {
		return nil
	}
	hold := p.Reservation(o.Migration, beside)
	// A killed run may have made it the Service's own already, and has to be undone first.
	err := hold.PlaceAfter(ctx, o.Client, p.Key())
	switch {
	case err == nil:
		p.recordHold(hold)
		return nil
	case IsTaken(err) && beside == p.New:
		return o.reserveNew(ctx, p)
	}
	return fmt.Errorf("service %s: its other address: %w", p.Key(), err)
}

// wanted is a Service that answers at both addresses, and says between which it moves. Of an
// earlier attempt that had gone elsewhere, nothing stays.
func (o *ownStep) wanted(svc *corev1.Service) *corev1.Service {
	p := o.progress
	want := p.AsOwned(svc).DeepCopy()
	ownaddress.Add(want, p.Beside(svc), p.Overlap.Form)
	want.Annotations = maps.Clone(want.Annotations)
	if want.Annotations == nil {
		want.Annotations = map[string]string{}
	}
	maps.Copy(want.Annotations, map[string]string{
		v1alpha1.LabelMigration:     o.Migration,
		v1alpha1.AnnotationOldIP:    p.Old.String(),
		v1alpha1.AnnotationTargetIP: p.New.String(),
	})
	return want
}

func (o *ownStep) prove(ctx context.Context) error {
	svc, err := o.progress.Read(ctx, o.Client)
	if err != nil || svc == nil || o.mayNotMove(o.progress, svc) != "" {
		return err
	}
	return o.answers(ctx, svc)
}

func (o *ownStep) changes() ([]engine.Change, error) {
	p := o.progress
	svc := p.Service
	beside := p.Beside(svc)
	if !beside.IsValid() {
		return nil, nil
	}
	var changes []engine.Change
	if _, reserved := p.Reserved[beside]; !reserved {
		changes = append(changes, engine.Change{
			Verb: "create", Object: "IPAddress " + beside.String() + " (if it is not reserved by then)", Body: p.Reservation(o.Migration, beside).Build(),
		})
	}
	return append(changes, ownChange(p.Key().String(), svc, o.wanted(svc))...), nil
}

// TryOwnAddress asks by a dry run whether a Service may be edited that keeps its other address
// itself, and returns a refusal apart from errors.
func TryOwnAddress(ctx context.Context, c client.Client, migration string, e *services.Entry) (*admission.Refusal, error) {
	o := &ownStep{Steps: &Steps{Migration: migration}, progress: &Progress{Entry: *e}}
	want := o.wanted(e.Service)
	want.Status = *e.Service.Status.DeepCopy()
	patch := client.MergeFrom(e.Service.DeepCopy())
	body, err := patch.Data(want)
	if err != nil {
		return nil, fmt.Errorf("service %s: %w", e.Key(), err)
	}
	return admission.Patch(ctx, c, e.Service.DeepCopy(), client.RawPatch(patch.Type(), body))
}

// ownChange shows what ownaddress.Write sends.
func ownChange(name string, svc, want *corev1.Service) []engine.Change {
	spec := map[string]any{}
	if !equality.Semantic.DeepEqual(svc.Spec.ExternalIPs, want.Spec.ExternalIPs) {
		spec["externalIPs"] = want.Spec.ExternalIPs
	}
	if svc.Spec.ExternalTrafficPolicy != want.Spec.ExternalTrafficPolicy {
		spec["externalTrafficPolicy"] = want.Spec.ExternalTrafficPolicy
	}
	if svc.Spec.Type != want.Spec.Type {
		spec["type"], spec["loadBalancerClass"] = want.Spec.Type, want.Spec.LoadBalancerClass
		spec["allocateLoadBalancerNodePorts"] = want.Spec.AllocateLoadBalancerNodePorts
	}
	changes := []engine.Change{{Verb: "patch", Object: "Service " + name, Body: map[string]any{
		"metadata": map[string]any{"annotations": changedNotes(svc.Annotations, want.Annotations)}, "spec": spec,
	}}}
	if !equality.Semantic.DeepEqual(svc.Status.LoadBalancer, want.Status.LoadBalancer) {
		changes = append(changes, engine.Change{Verb: "patch", Object: "Service " + name + " (its status)", Body: map[string]any{
			"status": map[string]any{"loadBalancer": want.Status.LoadBalancer},
		}})
	}
	return changes
}

func changedNotes(was, is map[string]string) map[string]any {
	changed := map[string]any{}
	for key, text := range is {
		if was[key] != text {
			changed[key] = text
		}
	}
	for key := range was {
		if _, there := is[key]; !there {
			changed[key] = nil
		}
	}
	return changed
}

// exchangeStep moves a Service that answers at both addresses itself: they change places in one
// transaction, so that no node knows one of them alone.
type exchangeStep struct {
	engine.Observed[*corev1.Service]

	*hopStep
}

func (h *hopStep) exchanged() engine.Step {
	x := &exchangeStep{hopStep: h}
	x.Observed = engine.Observed[*corev1.Service]{
		Name: h.Name, As: engine.RoleMove, Look: x.look, Answered: x.write, Proof: x.prove, Changes: x.changes, Reverse: h.Reverse,
	}
	return x
}

func (x *exchangeStep) Title() string { return x.hopStep.Title() }

// look goes by the answer to the write before it, if there is one: the transaction is made only if
// that is still what etcd has, and after any failure the Service is read.
func (x *exchangeStep) look(ctx context.Context) (engine.State, *corev1.Service, error) {
	if x.remembers() {
		return engine.Pending, x.progress.service, nil
	}
	svc, err := x.progress.Read(ctx, x.Client)
	if err != nil || svc == nil {
		return engine.Done, nil, err
	}
	src, dest := x.ends()
	switch {
	case services.IsAt(svc, dest) && x.answers(ctx, svc) == nil:
		return engine.Done, svc, nil
	case services.IsAt(svc, dest), services.IsAt(svc, src), x.mayNotMove(x.progress, svc) != "":
		return engine.Pending, svc, nil
	}
	return engine.Blocked, svc, services.ChangedError(x.progress.Key(), "is now of type %s at %q, and was to move from %s to %s",
		svc.Spec.Type, svc.Spec.ClusterIP, src, dest)
}

func (x *exchangeStep) remembers() bool {
	src, _ := x.ends()
	svc := x.progress.service
	return svc != nil && services.IsAt(svc, src) && x.both().has(svc) == nil
}

func (x *exchangeStep) both() *ownStep { return &ownStep{Steps: x.Steps, progress: x.progress} }

func (x *exchangeStep) answers(ctx context.Context, svc *corev1.Service) error {
	return x.both().answers(ctx, svc)
}

// write returns a proof by what the transaction has written.
func (x *exchangeStep) write(ctx context.Context, svc *corev1.Service) (func(context.Context) error, error) {
	_, dest := x.ends()
	p := x.progress
	p.skipped = ""
	remembered := svc == p.service
	p.service = nil
	if reason := x.mayNotMove(x.progress, svc); reason != "" && !services.IsAt(svc, dest) {
		p.skipped = reason
		return noProof, x.skip(ctx, svc)
	}
	if p.began.IsZero() {
		p.began = x.Now()
	}
	err := x.move(ctx, svc)
	if remembered && errors.As(err, new(*stored.IdentityError)) { // it may have been deleted since
		err = engine.NotYet("%w", err)
	}
	if err != nil {
		return nil, err
	}
	p.service = svc
	return func(context.Context) error { return x.arrived(svc, x.both().has(svc)) }, nil
}

// move adds the other address again, if it was taken off since the barrier, and exchanges both.
func (x *exchangeStep) move(ctx context.Context, svc *corev1.Service) error {
	_, dest := x.ends()
	there := services.IsAt(svc, dest)
	if _, reserved := x.progress.Reserved[dest]; there || !reserved || x.both().has(svc) != nil {
		if err := x.both().add(ctx, svc); err != nil || there {
			return err
		}
		if err := x.Barriers.pass(ctx, x.ID()); err != nil {
			return err
		}
	}
	return (&attempt{hopStep: x.hopStep, svc: svc}).exchange(ctx)
}

func (x *exchangeStep) prove(ctx context.Context) error {
	svc, err := x.progress.Read(ctx, x.Client)
	if err != nil || svc == nil || x.progress.skipped != "" {
		return err
	}
	return x.arrived(svc, x.answers(ctx, svc))
}

// arrived is nil for a Service that has moved and keeps the address that it has left.
func (x *exchangeStep) arrived(svc *corev1.Service, keeps error) error {
	_, dest := x.ends()
	if !services.IsAt(svc, dest) {
		return services.ChangedError(x.progress.Key(), "is of type %s at %q, want %s", svc.Spec.Type, svc.Spec.ClusterIP, dest)
	}
	if keeps != nil {
		return fmt.Errorf("service %s has moved, but does not keep %s: %w", x.progress.Key(), x.progress.Beside(svc), keeps)
	}
	x.report(svc)
	return nil
}

func (x *exchangeStep) changes() ([]engine.Change, error) { return x.etcd().Changes(), nil }

// errNoStore is for a Migration whose etcd was taken out of it after Services had moved by it.
var errNoStore error = &fault.Hinted{
	Err:  errors.New("spec.serviceCIDR.etcd does not say how etcd is reached, where the addresses of Services have to change places"),
	Hint: "name etcd and the strategies as they were, and run the command again",
}
