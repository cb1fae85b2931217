package servicecidr

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
)

// arrivedStep verifies that a Service is where it was to go, before its old address is taken away.
type arrivedStep struct {
	tools Tools
	entry *Entry
}

func (s *arrivedStep) ID() string { return "verify/" + s.entry.Key().String() }
func (s *arrivedStep) Title() string {
	return fmt.Sprintf("Verify %s at %s", s.entry.Key(), s.entry.New)
}

func (s *arrivedStep) State(ctx context.Context) (engine.State, error) {
	if err := s.Verify(ctx); err != nil {
		return engine.Blocked, err
	}
	return engine.Done, nil
}
func (s *arrivedStep) Do(context.Context) error { return nil }
func (s *arrivedStep) Verify(ctx context.Context) error {
	svc, err := readService(ctx, s.tools.Cluster, s.entry)
	if err != nil || svc == nil {
		return err
	}
	if !isAt(svc, s.entry.New) {
		return fmt.Errorf("service %s is of type %s at %q, not at %s", s.entry.Key(), svc.Spec.Type, svc.Spec.ClusterIP, s.entry.New)
	}
	return nil
}

// releaseStep takes away what kept the other address of a Service answering: the bridge first, then the hold, so that
// nobody is given an address that still leads somewhere; and last what the Service remembers, from which an
// interrupted run goes on.
type releaseStep struct {
	tools     Tools
	migration string
	entry     *Entry
	// at is where the Service must be for this to be safe.
	at netip.Addr
	// seen and bridge are what State saw, for the Do that follows. What changed since is met with a conflict.
	seen, bridge *corev1.Service
}

func (s *releaseStep) ID() string { return "release/" + s.entry.Key().String() }
func (s *releaseStep) Title() string {
	return fmt.Sprintf("Remove the bridge of %s, which is at %s", s.entry.Key(), s.at)
}

func (s *releaseStep) State(ctx context.Context) (engine.State, error) {
	svc, err := readService(ctx, s.tools.Cluster, s.entry)
	s.seen = svc
	if err != nil {
		return engine.Unknown, err
	}
	if svc != nil && !isAt(svc, s.at) {
		return engine.Blocked, fmt.Errorf("service %s is of type %s at %q, not at %s: its bridge must stay",
			s.entry.Key(), svc.Spec.Type, svc.Spec.ClusterIP, s.at)
	}
	left, err := s.left(ctx, svc)
	switch {
	case err != nil:
		return engine.Unknown, err
	case left != "":
		return engine.Pending, nil
	}
	return engine.Done, nil
}

// left says what of the migration is still there; nothing, if nothing is.
func (s *releaseStep) left(ctx context.Context, svc *corev1.Service) (string, error) {
	have := &corev1.Service{}
	s.bridge = nil
	err := s.tools.Cluster.Get(ctx, s.entry.BridgeKey(), have)
	if err == nil {
		s.bridge = have
		return fmt.Sprintf("bridge %s is still there", s.entry.BridgeKey()), nil
	}
	if !apierrors.IsNotFound(err) {
		return "", fmt.Errorf("bridge %s: %w", s.entry.BridgeKey(), err)
	}
	for _, a := range s.holds(svc) {
		ip := &networkingv1.IPAddress{}
		if err := s.tools.Cluster.Get(ctx, types.NamespacedName{Name: a.String()}, ip); client.IgnoreNotFound(err) != nil {
			return "", fmt.Errorf("address %s: %w", a, err)
		}
		if key, held := bridge.HeldFor(ip); held && key == s.entry.BridgeKey() {
			return fmt.Sprintf("address %s is still held", a), nil
		}
	}
	if svc != nil && svc.Annotations[v1alpha1.LabelMigration] != "" {
		return fmt.Sprintf("service %s still has annotations", s.entry.Key()), nil
	}
	return "", nil
}

// holds are the addresses that may be held: not the one that the Service is at, since that is the Service's own.
func (s *releaseStep) holds(svc *corev1.Service) []netip.Addr {
	var all []netip.Addr
	for _, a := range []netip.Addr{s.entry.Old, s.entry.New} {
		if svc == nil || !isAt(svc, a) {
			all = append(all, a)
		}
	}
	return all
}

func (s *releaseStep) Do(ctx context.Context) error {
	svc, err := lately(ctx, s.tools.Cluster, s.entry, &s.seen)
	if err != nil {
		return err
	}
	if err := s.remove(ctx); err != nil {
		return fmt.Errorf("bridge %s: %w", s.entry.BridgeKey(), err)
	}
	for _, a := range s.holds(svc) {
		if err := s.entry.hold(s.migration, a).Release(ctx, s.tools.Cluster); err != nil {
			return fmt.Errorf("address %s: %w", a, err)
		}
	}
	if svc == nil {
		return nil
	}
	body, err := json.Marshal(forget(svc))
	if err != nil {
		return fmt.Errorf("service %s: %w", s.entry.Key(), err)
	}
	return s.tools.Cluster.Patch(ctx, svc, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
}

func (s *releaseStep) remove(ctx context.Context) error {
	if s.bridge == nil {
		return bridge.Remove(ctx, s.tools.Cluster, s.entry.BridgeKey())
	}
	return bridge.Delete(ctx, s.tools.Cluster, s.bridge)
}

func forget(svc *corev1.Service) map[string]any {
	notes := map[string]any{}
	for _, key := range []string{
		v1alpha1.LabelMigration, v1alpha1.AnnotationOldIP, v1alpha1.AnnotationTargetIP,
		v1alpha1.AnnotationOriginalSpec, v1alpha1.AnnotationMovedAt, v1alpha1.AnnotationAwaySince,
	} {
		notes[key] = nil
	}
	return map[string]any{"metadata": map[string]any{"resourceVersion": svc.ResourceVersion, "annotations": notes}}
}

func (s *releaseStep) Verify(ctx context.Context) error {
	svc, err := readService(ctx, s.tools.Cluster, s.entry)
	if err != nil {
		return err
	}
	left, err := s.left(ctx, svc)
	if err == nil && left != "" {
		return engine.NotYet("%s", left)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *releaseStep) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "delete", Object: "Service " + s.entry.BridgeKey().String()},
		{Verb: "patch", Object: "Service " + s.entry.Key().String(), Body: timelessForget(s.entry.Service)},
	}, nil
}

func timelessForget(svc *corev1.Service) map[string]any {
	patch := forget(svc)
	delete(patch["metadata"].(map[string]any), "resourceVersion")
	return patch
}

// orphanStep removes the bridge of a Service that was deleted while it moved.
type orphanStep struct {
	tools  Tools
	bridge *corev1.Service
}

func (s *orphanStep) key() types.NamespacedName { return client.ObjectKeyFromObject(s.bridge) }
func (s *orphanStep) ID() string                { return "tidy/bridge/" + s.key().String() }
func (s *orphanStep) Title() string {
	return "Remove the bridge of a deleted Service, " + s.key().String()
}

func (s *orphanStep) State(ctx context.Context) (engine.State, error) {
	err := s.tools.Cluster.Get(ctx, s.key(), &corev1.Service{})
	if apierrors.IsNotFound(err) {
		return engine.Done, nil
	}
	return engine.Pending, err
}

func (s *orphanStep) Do(ctx context.Context) error {
	return bridge.Remove(ctx, s.tools.Cluster, s.key())
}

func (s *orphanStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("bridge %s is still there", s.key())
	}
	return err
}

// Preview implements engine.Previewer.
func (s *orphanStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: "Service " + s.key().String()}}, nil
}

// strayStep removes a hold that nothing needs any more.
type strayStep struct {
	tools     Tools
	migration string
	ip        *networkingv1.IPAddress
}

func (s *strayStep) ID() string    { return "tidy/hold/" + s.ip.Name }
func (s *strayStep) Title() string { return "Give back the held address " + s.ip.Name }
func (s *strayStep) State(ctx context.Context) (engine.State, error) {
	ip := &networkingv1.IPAddress{}
	err := s.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(s.ip), ip)
	if apierrors.IsNotFound(err) || (err == nil && ip.UID != s.ip.UID) {
		return engine.Done, nil
	}
	return engine.Pending, err
}

func (s *strayStep) Do(ctx context.Context) error {
	return client.IgnoreNotFound(s.tools.Cluster.Delete(ctx, s.ip, client.Preconditions{UID: &s.ip.UID}))
}

func (s *strayStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("address %s is still held", s.ip.Name)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *strayStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: "IPAddress " + s.ip.Name}}, nil
}
