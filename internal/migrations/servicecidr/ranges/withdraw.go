package ranges

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// withdrawal removes a range of the migration, or hands one in use to the cluster. A range deleted
// in use stays, gives out no addresses, and cannot be made again under its name.
type withdrawal struct {
	engine.Observed[*networkingv1.ServiceCIDR]

	of    ServiceRange
	users []string
}

var _ engine.Noter = (*withdrawal)(nil)

// Withdraw removes the range, or hands it over to those who use it.
func (r ServiceRange) Withdraw() engine.Step {
	w := &withdrawal{of: r}
	object := "ServiceCIDR " + r.Name
	w.Observed = engine.Observed[*networkingv1.ServiceCIDR]{
		Name: "withdraw/" + r.Name, About: fmt.Sprintf("Remove the Service range %s, unless a Service is in it", r.Cidr),
		Look: w.look, Write: w.write, Proof: w.prove,
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{
				{Verb: "delete", Object: object},
				{Verb: "patch", Object: object + " (instead, if a Service is in it)", Body: r.patchForget("")},
			}, nil
		},
	}
	return w
}

func (w *withdrawal) Note() string {
	if len(w.users) == 0 {
		return ""
	}
	return fmt.Sprintf("the Service range %s stays, and is the cluster's own: it is used by %s", w.of.Cidr, services.FirstTen(w.users))
}

// look leaves a range that is going, and one that cannot go to putBack.
func (w *withdrawal) look(ctx context.Context) (engine.State, *networkingv1.ServiceCIDR, error) {
	state, have, err := w.of.lookForOwn(ctx)
	if err == nil && have != nil && !have.DeletionTimestamp.IsZero() {
		state, err = engine.StateOf(w.prove(ctx))
	}
	return state, have, err
}

func (w *withdrawal) write(ctx context.Context, have *networkingv1.ServiceCIDR) error {
	if !have.DeletionTimestamp.IsZero() {
		return nil
	}
	users, err := w.of.users(ctx)
	if err != nil {
		return err
	}
	if len(users) == 0 {
		return DeleteRange(ctx, w.of.Client, have)
	}
	w.users = users
	return w.of.forget(ctx, have)
}

func (w *withdrawal) prove(ctx context.Context) error {
	have, err := w.of.own(ctx)
	if err != nil || have == nil {
		return err
	}
	users, err := w.of.users(ctx)
	if err == nil && len(users) == 0 {
		return engine.NotYet("servicecidr %s is still being removed", w.of.Name)
	}
	return err
}

// putBack opens the range again under another name, if an address was given out right before it was
// deleted.
func (r ServiceRange) putBack() engine.Step {
	return &engine.Observed[*networkingv1.ServiceCIDR]{
		Name: "put-back/" + r.Name, About: fmt.Sprintf("Open the Service range %s again, if a Service was just made in it", r.Cidr),
		Look: r.lookForOwn,
		Write: func(ctx context.Context, _ *networkingv1.ServiceCIDR) error {
			users, err := r.users(ctx)
			if err != nil || len(users) == 0 {
				return err
			}
			if err := r.Client.Create(ctx, r.successor(), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
				return fmt.Errorf("servicecidr %s…: %w", r.successor().GenerateName, err)
			}
			return nil
		},
		Proof: func(ctx context.Context) error {
			have, err := r.own(ctx)
			if err == nil && have != nil {
				return engine.NotYet("servicecidr %s is still being removed", r.Name)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			made := r.successor()
			return []engine.Change{{Verb: "create", Object: "ServiceCIDR " + made.GenerateName + "… (only then)", Body: made}}, nil
		},
	}
}

func (r ServiceRange) successor() *networkingv1.ServiceCIDR {
	made := r.Build()
	made.Name, made.GenerateName, made.Labels = "", r.Name+"-kept-", nil
	return made
}

func (r ServiceRange) forget(ctx context.Context, have *networkingv1.ServiceCIDR) error {
	patch, err := json.Marshal(r.patchForget(have.ResourceVersion))
	if err != nil {
		return fmt.Errorf("servicecidr %s: %w", r.Name, err)
	}
	return r.Client.Patch(ctx, have, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(v1alpha1.FieldManager))
}

// users name holders of addresses that no other range of the cluster holds.
func (r ServiceRange) users(ctx context.Context) ([]string, error) {
	all, err := ServiceCIDRs(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	var others []netip.Prefix
	for i := range all {
		if all[i].Name != r.Name && services.RangeReady(&all[i]) {
			others = append(others, services.CIDRsOf(&all[i])...)
		}
	}
	return holders(ctx, r.Client, []netip.Prefix{r.Cidr}, others)
}
