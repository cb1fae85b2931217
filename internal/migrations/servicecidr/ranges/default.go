package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// newDefault is the default ServiceCIDR that API servers make from their flag within ten seconds
// when there is none. A server whose flag names the range that goes brings it back.
type newDefault struct {
	client     client.Client
	want, gone []netip.Prefix
	remove     bool
}

// step waits for it, and removes the one before if that is asked for.
func (d newDefault) step() engine.Step {
	const limit = 3 * time.Minute
	id := "default/" + d.want[0].String()
	title := fmt.Sprintf("Wait until the API servers have made %s their default Service range", lists.Join(d.want, ", "))
	if !d.remove {
		return &engine.Wait{Name: id, About: title, For: d.made, Limit: limit}
	}
	return &engine.Write{
		Name: id, About: title, Holds: d.made, Limit: limit, Write: d.removeBefore, Changes: deletion("ServiceCIDR " + DefaultRange),
	}
}

func (d newDefault) removeBefore(ctx context.Context) error {
	have, err := ServiceCIDR(ctx, d.client, DefaultRange)
	if err != nil || have == nil || !have.DeletionTimestamp.IsZero() || !slices.Equal(services.CIDRsOf(have), d.gone) {
		return err
	}
	return DeleteRange(ctx, d.client, have)
}

func (d newDefault) made(ctx context.Context) error {
	have, err := ServiceCIDR(ctx, d.client, DefaultRange)
	switch {
	case err != nil:
		return err
	case have == nil:
		return engine.NotYet("no API server has made the default servicecidr again")
	case !have.DeletionTimestamp.IsZero():
		return stillThere(ctx, d.client, have.Name, without(d.gone, d.want), nil)
	case slices.Equal(services.CIDRsOf(have), d.gone) && d.remove:
		return engine.NotYet("the default servicecidr is still %s", lists.Join(d.gone, ", "))
	case slices.Equal(services.CIDRsOf(have), d.gone):
		return &CameBackError{Range: d.gone}
	case !d.fits(services.CIDRsOf(have)):
		return &fault.Hinted{
			Err:  fmt.Errorf("the default servicecidr is %s, and should be %s", lists.Join(services.CIDRsOf(have), ", "), lists.Join(d.want, ", ")),
			Hint: "start every API server with --service-cluster-ip-range=" + lists.Join(d.want, ",") + ", and run the same command again",
		}
	case !readyCondition(have):
		return engine.NotYet("the default servicecidr is not ready")
	}
	return nil
}

// fits reports whether the default ServiceCIDR has a wanted range; of both families, in order.
func (d newDefault) fits(have []netip.Prefix) bool {
	if len(d.want) > 1 && d.want[0].Addr().Is4() != d.want[1].Addr().Is4() {
		return slices.Equal(have, d.want)
	}
	return len(have) > 0 && slices.Contains(d.want, have[0])
}

// CameBackError says that an API server made a range again that was retired.
type CameBackError struct {
	Range []netip.Prefix
}

func (e *CameBackError) Error() string {
	return fmt.Sprintf("the default servicecidr came back with %s: an API server still has it as --service-cluster-ip-range",
		lists.Join(e.Range, ", "))
}

func (*CameBackError) Advice() string {
	return "restart that API server with the new --service-cluster-ip-range, then run the same command again"
}
