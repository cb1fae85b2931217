package hop

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// StillReserved verifies that addresses which etcd took from Services are reserved, and reserves
// them again. The controller that repairs IPAddresses deletes one that it takes for the Service's
// former own, if it looks at all Services at the very moment of the write.
func (s *Steps) StillReserved(all []*services.Entry) engine.Step {
	return &engine.Write{
		Name: "reserved/all", About: "Verify that the addresses which Services have left are reserved",
		Holds: func(ctx context.Context) error {
			missing, err := s.unreserved(ctx, all)
			if err == nil && len(missing) > 0 {
				return engine.NotYet("address %s is not reserved", missing[0].Old)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			missing, err := s.unreserved(ctx, all)
			for _, p := range missing {
				if err := p.Reservation(s.Migration, p.Old).PlaceAfter(ctx, s.Client, p.Key()); err != nil {
					return fmt.Errorf("service %s: its old address: %w", p.Key(), err)
				}
			}
			return err
		},
		Changes: engine.Shows(engine.Change{Verb: "create", Object: "IPAddress (if one is not there any more)"}),
	}
}

// unreserved are the Services that have left an address which is not reserved for them.
func (s *Steps) unreserved(ctx context.Context, all []*services.Entry) (missing []*Progress, err error) {
	found, err := cluster.List[corev1.Service](ctx, s.Client, &corev1.ServiceList{})
	if err != nil {
		return nil, err
	}
	reserved := &networkingv1.IPAddressList{}
	if err := s.Client.List(ctx, reserved, client.MatchingLabels{v1alpha1.LabelMigration: s.Migration}); err != nil {
		return nil, fmt.Errorf("listing held addresses: %w", err)
	}
	held, at := map[string]types.NamespacedName{}, map[types.UID]*corev1.Service{}
	for i := range reserved.Items {
		if key, is := bridge.HeldFor(&reserved.Items[i]); is {
			held[reserved.Items[i].Name] = key
		}
	}
	for i := range found {
		at[found[i].UID] = &found[i]
	}
	for _, e := range all {
		p := s.Tracker.Of(e)
		svc := at[e.Service.UID]
		if svc != nil && services.IsAt(svc, p.New) && held[p.Old.String()] != e.BridgeKey() {
			missing = append(missing, p)
		}
	}
	return missing, nil
}
