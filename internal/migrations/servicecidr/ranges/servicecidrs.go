package ranges

import (
	"context"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// ServiceCIDRs lists all of the cluster.
func ServiceCIDRs(ctx context.Context, c client.Client) ([]networkingv1.ServiceCIDR, error) {
	all := &networkingv1.ServiceCIDRList{}
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing servicecidrs: %w", err)
	}
	return all.Items, nil
}

// ServiceCIDR returns nil if there is none of that name.
func ServiceCIDR(ctx context.Context, c client.Client, name string) (*networkingv1.ServiceCIDR, error) {
	have := &networkingv1.ServiceCIDR{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("servicecidr %s: %w", name, err)
	}
	return have, nil
}

// DeleteRange deletes the ServiceCIDR that was seen, and no other of its name.
func DeleteRange(ctx context.Context, c client.Client, seen *networkingv1.ServiceCIDR) error {
	return client.IgnoreNotFound(c.Delete(ctx, seen, client.Preconditions{UID: &seen.UID}))
}

func stillThere(ctx context.Context, c client.Client, name string, cidrs, kept []netip.Prefix) error {
	holders, err := holders(ctx, c, cidrs, kept)
	if err != nil {
		return err
	}
	if len(holders) == 0 {
		return engine.NotYet("servicecidr %s is still being removed", name)
	}
	return engine.NotYet("servicecidr %s is still used by %s", name, services.FirstTen(holders))
}

// holders name the users of ranges, those kept for pins aside. The API server counts only addresses
// of Services (canDeleteCIDR in k8s.io/kubernetes
// pkg/controller/servicecidrs/servicecidrs_controller.go).
func holders(ctx context.Context, c client.Client, cidrs, kept []netip.Prefix) ([]string, error) {
	all := &networkingv1.IPAddressList{}
	if err := c.List(ctx, all, client.MatchingLabels{networkingv1.LabelManagedBy: "ipallocator.k8s.io"}); err != nil {
		return nil, fmt.Errorf("listing ipaddresses: %w", err)
	}
	var holders []string
	for i := range all.Items {
		a, err := netip.ParseAddr(all.Items[i].Name)
		if err == nil && cidr.Contains(cidrs, a) && !cidr.Contains(kept, a) {
			holders = append(holders, bridge.ParentOf(&all.Items[i])+" ("+a.String()+")")
		}
	}
	return holders, nil
}

func deletion(object string) func() ([]engine.Change, error) {
	return engine.Shows(engine.Change{Verb: "delete", Object: object})
}

func readyCondition(c *networkingv1.ServiceCIDR) bool {
	return len(c.Status.Conditions) > 0 && services.RangeReady(c)
}
