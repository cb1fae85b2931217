// Package release takes away what a move has left of each Service: bridges, reserved addresses and
// notes.
package release

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/ownaddress"
)

// Release takes bridge, reservation and notes away, in this order: an address that leads somewhere
// is given to no one, and an interrupted run goes on by the notes.
type Release struct {
	Client    client.Client
	Migration string
	Entry     *services.Entry
	// At is where the Service must be, unless others took it out of the migration.
	At         netip.Addr
	Domain     string
	Strategies services.Strategies
	// Why, if set, is why the Service is not in the migration any more.
	Why string
	// Later, if set, has reservations given up by Free, with those of others.
	Later bool
}

// remainder is what was seen of a Service to release; nil for what is gone.
type remainder struct{ service, bridge *corev1.Service }

func (r Release) Step() engine.Step {
	name, about := "release/", fmt.Sprintf("Remove the bridge of %s, which is at %s", r.Entry.Key(), r.At)
	if r.Why != "" {
		name, about = "tidy/service/", fmt.Sprintf("Remove what there is of %s, which leaves the migration: it %s", r.Entry.Key(), r.Why)
	}
	return &engine.Observed[remainder]{
		Name: name + r.Entry.Key().String(), About: about,
		Look: r.lookFirst(), Write: r.write, Proof: r.prove, Changes: r.changes,
	}
}

// Do releases a Service as it was just read.
func (r Release) Do(ctx context.Context, svc *corev1.Service) error {
	if err := r.write(ctx, remainder{service: svc}); err != nil {
		return err
	}
	return r.prove(ctx)
}

// lookFirst is a look that takes the survey's word once for a Service that answers beside itself:
// the patch that takes the address off carries the resourceVersion, and after a failure it is read.
func (r Release) lookFirst() func(context.Context) (engine.State, remainder, error) {
	surveyed := r.Entry.Service
	return func(ctx context.Context) (engine.State, remainder, error) {
		svc := surveyed
		surveyed = nil
		if svc == nil || r.bridged() || !services.IsAt(svc, r.At) ||
			!slices.ContainsFunc(r.reserved(svc), func(a netip.Addr) bool { return answersBeside(svc, a) }) {
			return r.look(ctx)
		}
		return engine.Pending, remainder{service: svc.DeepCopy()}, nil
	}
}

func (r Release) look(ctx context.Context) (engine.State, remainder, error) {
	svc, err := r.Entry.Read(ctx, r.Client)
	if err != nil {
		return engine.Unknown, remainder{}, err
	}
	if svc != nil && !services.IsAt(svc, r.At) && !r.outOfMigration(svc) {
		return engine.Blocked, remainder{}, services.ChangedError(r.Entry.Key(), "is of type %s at %q, not at %s: its bridge must stay",
			svc.Spec.Type, svc.Spec.ClusterIP, r.At)
	}
	seen, left, err := r.leftOf(ctx, svc)
	switch {
	case err != nil:
		return engine.Unknown, seen, err
	case left != "":
		return engine.Pending, seen, nil
	}
	return engine.Done, seen, nil
}

func (r Release) outOfMigration(svc *corev1.Service) bool {
	_, reason := r.Strategies.Evaluate(r.Entry.AsOwned(svc))
	return (r.Why != "" || reason.Kind != "") && !r.Entry.IsInTransit(svc, r.Domain)
}

func (r Release) leftOf(ctx context.Context, svc *corev1.Service) (seen remainder, left string, err error) {
	seen.service = svc
	if r.bridged() {
		have := &corev1.Service{}
		err = r.Client.Get(ctx, r.Entry.BridgeKey(), have)
		if err == nil {
			seen.bridge = have
			return seen, fmt.Sprintf("bridge %s is still there", r.Entry.BridgeKey()), nil
		}
		if !apierrors.IsNotFound(err) {
			return seen, "", fmt.Errorf("bridge %s: %w", r.Entry.BridgeKey(), err)
		}
	}
	for _, a := range r.reserved(svc) {
		if svc != nil && r.Entry.KeepsItself() && answersBeside(svc, a) {
			return seen, fmt.Sprintf("service %s still answers at %s", r.Entry.Key(), a), nil
		}
		if r.Later {
			continue
		}
		ip := &networkingv1.IPAddress{}
		if err := r.Client.Get(ctx, types.NamespacedName{Name: a.String()}, ip); client.IgnoreNotFound(err) != nil {
			return seen, "", fmt.Errorf("address %s: %w", a, err)
		}
		if key, reserved := bridge.HeldFor(ip); reserved && key == r.Entry.BridgeKey() {
			return seen, fmt.Sprintf("address %s is still reserved", a), nil
		}
	}
	if svc != nil && svc.Annotations[v1alpha1.LabelMigration] != "" {
		return seen, fmt.Sprintf("service %s still has annotations", r.Entry.Key()), nil
	}
	return seen, "", nil
}

// bridged reports whether there may be a bridge. A way back by hop has just made one.
func (r Release) bridged() bool {
	e := r.Entry
	return !e.KeepsItself() || e.Bridge != nil || !e.Exchanges() && (r.At != e.New || e.Position != services.Moved)
}

// answersBeside reports whether a Service has anything of what has it answer at another address.
func answersBeside(svc *corev1.Service, a netip.Addr) bool {
	_, answers := ownaddress.FormOf(svc, a)
	return answers || ownaddress.Unanswered(svc)
}

func (r Release) reserved(svc *corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, a := range r.Entry.Addresses() {
		if svc == nil || !services.IsAt(svc, a) {
			all = append(all, a)
		}
	}
	return all
}

func (r Release) write(ctx context.Context, seen remainder) error {
	if r.bridged() {
		if err := r.removeBridge(ctx, seen.bridge); err != nil {
			return fmt.Errorf("bridge %s: %w", r.Entry.BridgeKey(), err)
		}
	}
	if err := r.removeOwn(ctx, seen.service); err != nil {
		return err
	}
	if !r.Later {
		if err := r.free(ctx, r.reserved(seen.service)); err != nil {
			return err
		}
	}
	svc := seen.service
	if svc == nil || !noted(svc) {
		return nil
	}
	body, err := json.Marshal(patchWithoutNotes(svc.ResourceVersion))
	if err != nil {
		return fmt.Errorf("service %s: %w", r.Entry.Key(), err)
	}
	return r.Client.Patch(ctx, svc, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
}

func (r Release) free(ctx context.Context, all []netip.Addr) error {
	for _, a := range all {
		if err := r.Entry.Reservation(r.Migration, a).Release(ctx, r.Client); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	return nil
}

// removeOwn takes off what a Service answers at beside its address, and the notes with it: the
// reservation is left to go on by.
func (r Release) removeOwn(ctx context.Context, svc *corev1.Service) error {
	if svc == nil || !r.Entry.KeepsItself() {
		return nil
	}
	want := svc.DeepCopy()
	for _, a := range r.reserved(svc) {
		ownaddress.Remove(want, a)
	}
	for _, key := range notes() {
		delete(want.Annotations, key)
	}
	return ownaddress.Write(ctx, r.Client, svc, want)
}

// notes are the migration's annotations on a Service.
func notes() []string {
	return []string{
		v1alpha1.LabelMigration, v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP,
		v1alpha1.AnnotationOriginalSpec, v1alpha1.AnnotationMovedAt, v1alpha1.AnnotationAwaySince,
	}
}

func noted(svc *corev1.Service) bool {
	return slices.ContainsFunc(notes(), func(key string) bool { _, there := svc.Annotations[key]; return there })
}

func (r Release) removeBridge(ctx context.Context, seen *corev1.Service) error {
	if seen == nil {
		return bridge.Remove(ctx, r.Client, r.Entry.BridgeKey())
	}
	return bridge.Delete(ctx, r.Client, seen)
}

// patchWithoutNotes takes the migration's annotations off an unchanged Service; no version means
// any.
func patchWithoutNotes(version string) map[string]any {
	none := map[string]any{}
	for _, key := range notes() {
		none[key] = nil
	}
	meta := map[string]any{"annotations": none}
	if version != "" {
		meta["resourceVersion"] = version
	}
	return map[string]any{"metadata": meta}
}

// prove asks whether the bridge is gone, which finalizers may hold.
func (r Release) prove(ctx context.Context) error {
	if !r.bridged() {
		return nil
	}
	err := r.Client.Get(ctx, r.Entry.BridgeKey(), &corev1.Service{})
	if err == nil {
		return engine.NotYet("bridge %s is still there", r.Entry.BridgeKey())
	}
	return client.IgnoreNotFound(err)
}

func (r Release) changes() ([]engine.Change, error) {
	changes := BridgeDeletion(r.Entry.BridgeKey(), r.Entry.Service.Spec.Selector)
	if !r.bridged() {
		changes = nil
	}
	for _, a := range r.Entry.Addresses() {
		if a != r.At && !r.Later {
			changes = append(changes, engine.Change{Verb: "delete", Object: "IPAddress " + a.String() + " (held)"})
		}
	}
	body := patchWithoutNotes("")
	if own := r.withoutOwn(); own != nil {
		body["spec"] = own
	}
	return append(changes, engine.Change{Verb: "patch", Object: "Service " + r.Entry.Key().String(), Body: body}), nil
}

// withoutOwn is what the patch changes of the spec; nil, if nothing.
func (r Release) withoutOwn() map[string]any {
	if !r.Entry.KeepsItself() {
		return nil
	}
	if r.Entry.Overlap.Form == v1alpha1.OverlapExternalIP {
		return map[string]any{"externalIPs": "without the other address"}
	}
	return map[string]any{"type": "as before", "loadBalancerClass": nil, "allocateLoadBalancerNodePorts": nil}
}

// BridgeDeletion shows what goes with a bridge.
func BridgeDeletion(key types.NamespacedName, selector map[string]string) []engine.Change {
	changes := []engine.Change{{Verb: "delete", Object: "Service " + key.String()}}
	if len(selector) == 0 {
		changes = append(changes, engine.Change{Verb: "delete", Object: "EndpointSlice " + key.String() + "-… (copies of the Service's)"})
	}
	return changes
}
