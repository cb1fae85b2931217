package ranges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// ServiceRange is one that the migration adds: a target, one for pinned Services, or one opened
// again.
type ServiceRange struct {
	Client    client.Client
	Migration string
	Name      string
	Cidr      netip.Prefix
	Role      string
	// was are all ranges of the ServiceCIDR of which this one keeps the other family's.
	was []netip.Prefix
}

// Find prefers a ServiceCIDR of exactly this range that is not going, whoever's. A range kept apart
// has to be the migration's own.
func (r ServiceRange) Find(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	if len(r.was) > 0 {
		return r.own(ctx)
	}
	all, err := ServiceCIDRs(ctx, r.Client)
	if err != nil {
		return nil, err
	}
	var found *networkingv1.ServiceCIDR
	for i := range all {
		if !slices.Contains(services.CIDRsOf(&all[i]), r.Cidr) {
			continue
		}
		if all[i].DeletionTimestamp.IsZero() {
			return &all[i], nil
		}
		found = &all[i]
	}
	return found, nil
}

// own is nil if there is no ServiceCIDR of that name, or it is not the migration's any more.
func (r ServiceRange) own(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	have, err := ServiceCIDR(ctx, r.Client, r.Name)
	if err != nil || have == nil || have.Labels[v1alpha1.LabelMigration] != r.Migration {
		return nil, err
	}
	return have, nil
}

func (r ServiceRange) Build() *networkingv1.ServiceCIDR {
	made := &networkingv1.ServiceCIDR{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   r.Name,
			Labels: map[string]string{v1alpha1.LabelMigration: r.Migration, v1alpha1.LabelRole: r.Role},
		},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{r.Cidr.String()}},
	}
	if len(r.was) > 0 {
		made.Annotations = map[string]string{v1alpha1.AnnotationRanges: FlagText(r.was)}
	}
	return made
}

func (r ServiceRange) purpose() string {
	switch {
	case len(r.was) > 0:
		return fmt.Sprintf("Keep the Service range %s of the other family", r.Cidr)
	case r.Role == v1alpha1.RoleKeep:
		return fmt.Sprintf("Keep the Service range %s for pinned Services", r.Cidr)
	case r.Role == v1alpha1.RoleReopened:
		return fmt.Sprintf("Open the Service range %s again", r.Cidr)
	}
	return fmt.Sprintf("Add the Service range %s", r.Cidr)
}

func (r ServiceRange) Add() engine.Step {
	return &engine.Observed[*networkingv1.ServiceCIDR]{
		Name: r.Role + "/" + r.Name, About: r.purpose(),
		Look: func(ctx context.Context) (engine.State, *networkingv1.ServiceCIDR, error) {
			have, err := r.Find(ctx)
			if err != nil {
				return engine.Unknown, nil, err
			}
			if have == nil || !services.RangeReady(have) {
				return engine.Pending, have, nil
			}
			return engine.Done, have, nil
		},
		Write: r.create,
		Proof: func(ctx context.Context) error {
			have, err := r.Find(ctx)
			if err == nil && (have == nil || !readyCondition(have)) {
				return engine.NotYet("servicecidr %s is not ready", r.Name)
			}
			return err
		},
		Changes: engine.Shows(engine.Change{Verb: "create", Object: "ServiceCIDR " + r.Name, Body: r.Build()}),
		Reverse: r.Withdraw,
	}
}

func (r ServiceRange) create(ctx context.Context, have *networkingv1.ServiceCIDR) error {
	if have != nil && have.DeletionTimestamp.IsZero() {
		return nil
	}
	if err := r.Client.Create(ctx, r.Build(), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("servicecidr %s: %w", r.Name, err)
	}
	return nil
}

func (r ServiceRange) lookForOwn(ctx context.Context) (engine.State, *networkingv1.ServiceCIDR, error) {
	have, err := r.own(ctx)
	switch {
	case err != nil:
		return engine.Unknown, nil, err
	case have == nil:
		return engine.Done, nil, nil
	}
	return engine.Pending, have, nil
}

// HandOver makes the range the cluster's own, unless the API servers have made it a second time.
func (r ServiceRange) HandOver() engine.Step {
	object := "ServiceCIDR " + r.Name
	return &engine.Observed[*networkingv1.ServiceCIDR]{
		Name: "hand-over/" + r.Name, About: fmt.Sprintf("Hand the Service range %s over", r.Cidr),
		Look: r.lookForOwn,
		Write: func(ctx context.Context, have *networkingv1.ServiceCIDR) error {
			twice, err := r.twice(ctx)
			if err != nil {
				return err
			}
			if twice {
				return DeleteRange(ctx, r.Client, have)
			}
			return r.forget(ctx, have)
		},
		Proof: func(ctx context.Context) error {
			have, err := r.own(ctx)
			if err == nil && have != nil {
				return engine.NotYet("servicecidr %s still says it belongs to the migration", r.Name)
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{
				{Verb: "patch", Object: object, Body: r.patchForget("")},
				{Verb: "delete", Object: object + " (if an API server has made the range a second time)"},
			}, nil
		},
	}
}

// patchForget takes the migration's labels off an unchanged range; no version means any.
func (r ServiceRange) patchForget(version string) map[string]any {
	meta := map[string]any{"labels": map[string]any{v1alpha1.LabelMigration: nil, v1alpha1.LabelRole: nil}}
	if r.Role == v1alpha1.RoleKeep {
		meta["annotations"] = map[string]any{v1alpha1.AnnotationRanges: nil}
	}
	if version != "" {
		meta["resourceVersion"] = version
	}
	return map[string]any{"metadata": meta}
}

func (r ServiceRange) twice(ctx context.Context) (bool, error) {
	all, err := ServiceCIDRs(ctx, r.Client)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(c networkingv1.ServiceCIDR) bool {
		return c.Name != r.Name && readyCondition(&c) && slices.Contains(services.CIDRsOf(&c), r.Cidr)
	}), nil
}

const stepsAtOnce = 32
