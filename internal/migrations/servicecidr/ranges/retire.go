package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/cidr"
)

// retiredRange is a ServiceCIDR that the migration retires, and did not make.
type retiredRange struct {
	client client.Client
	name   string
	cidrs  []netip.Prefix
	// leaves are the cidrs that go: all but that of the other family.
	leaves []netip.Prefix
	kept   []netip.Prefix
	// Immovable names holders of addresses that neither move nor are pinned.
	immovable func(context.Context) ([]string, error)
}

// get returns nil if the range is gone, or another has its name.
func (r retiredRange) get(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	have, err := ServiceCIDR(ctx, r.client, r.name)
	if err != nil || have == nil || !slices.Equal(services.CIDRsOf(have), r.cidrs) {
		return nil, err
	}
	return have, nil
}

// vacant fails early if the range cannot be retired. Services in it that move are no reason.
func (r retiredRange) vacant() engine.Step {
	return &engine.Wait{
		Name: "vacant/" + r.name, About: "Verify that the Service range is empty: " + lists.Join(r.leaves, ", "),
		For: func(ctx context.Context) error {
			have, err := r.get(ctx)
			if err != nil || have == nil {
				return err
			}
			return r.empties(ctx)
		},
	}
}

// empties returns a RangeInUseError if something stays in the range.
func (r retiredRange) empties(ctx context.Context) error {
	holders, err := r.immovable(ctx)
	if err == nil && len(holders) > 0 {
		return &RangeInUseError{Name: r.name, Holders: holders}
	}
	return err
}

// retire deletes a range in which nothing stays. New addresses end with that, so a RangeInUseError
// names the last holders for another round.
func (r retiredRange) retire() engine.Step {
	return &engine.Observed[*networkingv1.ServiceCIDR]{
		Name: "retire/" + r.name, About: "Retire the Service range " + lists.Join(r.leaves, ", "),
		Look: func(ctx context.Context) (engine.State, *networkingv1.ServiceCIDR, error) {
			have, err := r.get(ctx)
			switch {
			case err != nil:
				return engine.Unknown, nil, err
			case have == nil:
				return engine.Done, nil, nil
			}
			return engine.Pending, have, nil
		},
		Write: func(ctx context.Context, have *networkingv1.ServiceCIDR) error {
			if !have.DeletionTimestamp.IsZero() {
				return nil
			}
			if err := r.empties(ctx); err != nil {
				return err
			}
			return DeleteRange(ctx, r.client, have)
		},
		Proof: func(ctx context.Context) error {
			have, err := r.get(ctx)
			if err != nil || have == nil {
				return err
			}
			holders, err := holders(ctx, r.client, r.leaves, r.kept)
			if err == nil && len(holders) > 0 {
				return r.inUse(ctx, holders)
			}
			return stillThere(ctx, r.client, r.name, r.leaves, r.kept)
		},
		Changes: deletion("ServiceCIDR " + r.name),
	}
}

// inUse is a RangeInUseError, or passes by itself for namespaces that are being removed.
func (r retiredRange) inUse(ctx context.Context, holders []string) error {
	inUse := &RangeInUseError{Name: r.name, Holders: holders}
	all, err := cluster.List[corev1.Service](ctx, r.client, &corev1.ServiceList{})
	if err != nil {
		return err
	}
	ending, err := endingNamespaces(ctx, r.client)
	if err != nil {
		return err
	}
	for i := range all {
		s := &all[i]
		at := services.AddressWithin(services.AddressesOf(s), r.leaves)
		if at.IsValid() && !cidr.Contains(r.kept, at) && !ending[s.Namespace] {
			return inUse
		}
	}
	return engine.NotYet("%w, which are gone or being removed with their namespaces", inUse)
}

func endingNamespaces(ctx context.Context, c client.Client) (map[string]bool, error) {
	all, err := cluster.List[corev1.Namespace](ctx, c, &corev1.NamespaceList{})
	if err != nil {
		return nil, err
	}
	ending := map[string]bool{}
	for i := range all {
		if !all[i].DeletionTimestamp.IsZero() {
			ending[all[i].Name] = true
		}
	}
	return ending, nil
}

func (r *RangePlan) Immovable(cidrs []netip.Prefix) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		now, err := r.lookAgain(ctx)
		if err != nil {
			return nil, err
		}
		return immovableIn(now, cidrs), nil
	}
}

func (r *RangePlan) lookAgain(ctx context.Context) (_ *services.Inventory, err error) {
	snap := &inventory.Snapshot{}
	if snap.ServiceCIDRs, err = ServiceCIDRs(ctx, r.Client); err != nil {
		return nil, err
	}
	if snap.IPAddresses, err = cluster.List[networkingv1.IPAddress](ctx, r.Client, &networkingv1.IPAddressList{}); err != nil {
		return nil, err
	}
	if snap.Services, err = cluster.List[corev1.Service](ctx, r.Client, &corev1.ServiceList{}); err != nil {
		return nil, err
	}
	return services.Load(snap, r.Inventory.Spec), nil
}

// RangeInUseError says that a range cannot be retired yet.
type RangeInUseError struct {
	Name    string
	Range   []netip.Prefix
	Holders []string
}

// Advice says how the range gets free.
func (*RangeInUseError) Advice() string {
	return "move or delete what is named, and run the same command again; old addresses answer meanwhile"
}

func (e *RangeInUseError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("the old range %s is still used by %s", lists.Join(e.Range, ", "), services.FirstTen(e.Holders))
	}
	return fmt.Sprintf("servicecidr %s is still used by %s", e.Name, services.FirstTen(e.Holders))
}
