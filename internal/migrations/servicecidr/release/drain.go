package release

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// DrainStep waits until the latest move is long enough ago.
func DrainStep(c client.Client, migration string, length time.Duration, now func() time.Time) *engine.Wait {
	return &engine.Wait{
		Name: "drain", About: fmt.Sprintf("Wait until the last move is %s ago", length), Limit: length + time.Minute,
		For: func(ctx context.Context) error {
			latest, err := lastMove(ctx, c, migration)
			if err != nil {
				return err
			}
			if until := latest.Add(length); until.After(now()) {
				return engine.NotYet("until %s", until.Local().Format(time.TimeOnly))
			}
			return nil
		},
	}
}

// lastMove is when the latest Service moved, by what is reserved for Services, whatever these say
// of themselves; zero, if nothing is reserved.
func lastMove(ctx context.Context, c client.Client, migration string) (latest time.Time, err error) {
	all, addresses := &corev1.ServiceList{}, &networkingv1.IPAddressList{}
	if err := c.List(ctx, all); err != nil {
		return latest, fmt.Errorf("listing services: %w", err)
	}
	if err := c.List(ctx, addresses, client.MatchingLabels{v1alpha1.LabelMigration: migration}); err != nil {
		return latest, fmt.Errorf("listing ipaddresses: %w", err)
	}
	held := services.ReservationsOf(&inventory.Snapshot{IPAddresses: addresses.Items})
	for i := range all.Items {
		svc := &all.Items[i]
		for _, r := range held.Of(svc, migration) {
			if at := services.MovedAt(svc, r.Since); at.After(latest) {
				latest = at
			}
		}
	}
	return latest, nil
}
