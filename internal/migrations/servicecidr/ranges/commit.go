package ranges

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

const annotationNoted = v1alpha1.AnnotationNoted

// CommitReservations has API servers that come into the range of reserved addresses keep them.
type CommitReservations struct {
	Client    client.Client
	Inventory *services.Inventory
	In        netip.Prefix
}

func (s CommitReservations) Step() engine.Step {
	return &engine.Observed[[]networkingv1.IPAddress]{
		Name:  "reserve/" + s.In.String(),
		About: fmt.Sprintf("Have API servers keep the addresses in %s that are reserved", s.In),
		As:    engine.RoleOwn,
		Look:  s.look,
		Write: s.write,
		Proof: func(ctx context.Context) error {
			left, err := s.noted(ctx)
			if err == nil && len(left) > 0 {
				return engine.NotYet("address %s is only noted", left[0].Name)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			var changes []engine.Change
			for _, o := range unreservedIn(s.Inventory, s.In) {
				changes = append(changes, engine.Change{Verb: "update", Object: "IPAddress " + o.Address.String() + " (reserved)"})
			}
			if len(changes) == 0 { // what is reserved meanwhile
				changes = append(changes,
					engine.Change{Verb: "update", Object: "IPAddress, if one in " + s.In.String() + " is reserved by then"})
			}
			return changes, nil
		},
	}
}

// noted are the reservations of the migration that are no more than notes.
func (s CommitReservations) noted(ctx context.Context) (left []networkingv1.IPAddress, err error) {
	all := &networkingv1.IPAddressList{}
	err = s.Client.List(ctx, all, client.MatchingLabels{v1alpha1.LabelMigration: s.Inventory.Spec.Name, v1alpha1.LabelRole: v1alpha1.RoleHold})
	if err != nil {
		return nil, fmt.Errorf("listing held addresses: %w", err)
	}
	for i := range all.Items {
		if isNoted(&all.Items[i], s.In) {
			left = append(left, all.Items[i])
		}
	}
	return left, nil
}

func (s CommitReservations) look(ctx context.Context) (engine.State, []networkingv1.IPAddress, error) {
	left, err := s.noted(ctx)
	switch {
	case err != nil:
		return engine.Unknown, nil, err
	case len(left) == 0:
		return engine.Done, nil, nil
	}
	return engine.Pending, left, nil
}

func (s CommitReservations) write(ctx context.Context, left []networkingv1.IPAddress) error {
	var taken []error
	for i := range left {
		ip := &left[i]
		err := s.Client.Update(ctx, ip, client.FieldOwner(v1alpha1.FieldManager))
		switch {
		case apierrors.IsAlreadyExists(err):
			if err := s.yield(ctx, ip); err != nil {
				taken = append(taken, err)
			}
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("address %s: %w", ip.Name, err)
		}
	}
	return errors.Join(taken...)
}

// yield gives up a reservation whose Service has the address, and names any other that has it.
func (s CommitReservations) yield(ctx context.Context, ip *networkingv1.IPAddress) error {
	a, err := netip.ParseAddr(ip.Name)
	if err != nil {
		return err
	}
	all := &corev1.ServiceList{}
	if err := s.Client.List(ctx, all, client.MatchingFields{"spec.clusterIP": ip.Name}); err != nil {
		return fmt.Errorf("services at %s: %w", ip.Name, err)
	}
	if len(all.Items) > 0 { // there is one at most
		svc, owner := &all.Items[0], client.ObjectKeyFromObject(&all.Items[0])
		if mine, _ := bridge.HeldFor(ip); services.BridgeKey(svc) != mine {
			return &bridge.TakenError{Address: a, By: "services " + owner.String()}
		}
		return client.IgnoreNotFound(s.Client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID}))
	}
	// One that was given back: a repair releases it.
	return engine.NotYet("address %s is taken, and no Service has it", ip.Name)
}

// isNoted reports whether no API server gave a reserved address out when it was reserved.
func isNoted(ip *networkingv1.IPAddress, in netip.Prefix) bool {
	a, err := netip.ParseAddr(ip.Name)
	_, held := bridge.HeldFor(ip)
	return err == nil && held && ip.Annotations[annotationNoted] != "" && in.Contains(a)
}
