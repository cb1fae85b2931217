package servicecidr

import (
	"context"
	"fmt"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// nothingLeft looks for remains of the migration before it is called over.
func nothingLeft(c client.Client, inventory *services.Inventory, to engine.Direction) engine.Step {
	looks := []func(context.Context, client.Client, string) ([]string, error){leftAddresses, leftFreeze}
	if to == engine.Forward {
		looks = append(looks, leftRanges)
	}
	return &engine.Wait{
		Name: "clean", About: "Verify that the cluster is clean of the migration",
		For: func(ctx context.Context) error {
			left, err := leftServices(ctx, c, inventory)
			if err != nil {
				return err
			}
			for _, look := range looks {
				found, err := look(ctx, c, inventory.Spec.Name)
				if err != nil {
					return err
				}
				left = append(left, found...)
			}
			if len(left) > 0 {
				return engine.NotYet("still there: %s", services.FirstTen(left))
			}
			return nil
		},
	}
}

func leftServices(ctx context.Context, c client.Client, s *services.Inventory) (left []string, err error) {
	bridges, moved := map[types.NamespacedName]bool{}, map[types.UID]bool{}
	for _, e := range slices.Concat(s.All(), s.Removed) {
		bridges[e.BridgeKey()], moved[e.Service.UID] = true, true
	}
	for _, b := range s.Orphans {
		bridges[client.ObjectKeyFromObject(b)] = true
	}
	all := &corev1.ServiceList{}
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing services: %w", err)
	}
	for i := range all.Items {
		svc := &all.Items[i]
		key := client.ObjectKeyFromObject(svc)
		switch {
		case (bridges[key] || services.IsOwn(svc)) && svc.Labels[v1alpha1.LabelMigration] == s.Spec.Name:
			left = append(left, svc.Labels[v1alpha1.LabelRole]+" "+key.String())
		case moved[svc.UID] && svc.Annotations[v1alpha1.LabelMigration] == s.Spec.Name:
			left = append(left, "the annotations of service "+key.String())
		}
	}
	return left, nil
}

func leftAddresses(ctx context.Context, c client.Client, migration string) (left []string, err error) {
	reserved := &networkingv1.IPAddressList{}
	if err := c.List(ctx, reserved, client.MatchingLabels{v1alpha1.LabelMigration: migration}); err != nil {
		return nil, fmt.Errorf("listing ipaddresses: %w", err)
	}
	for i := range reserved.Items {
		left = append(left, "reserved address "+reserved.Items[i].Name)
	}
	return left, nil
}

// leftRanges are Service ranges that still have the migration's label.
func leftRanges(ctx context.Context, c client.Client, migration string) (left []string, err error) {
	all, err := ranges.ServiceCIDRs(ctx, c)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].Labels[v1alpha1.LabelMigration] == migration {
			left = append(left, "servicecidr "+all[i].Name)
		}
	}
	return left, nil
}

// leftFreeze takes any freeze for one that is left: there can be but one.
func leftFreeze(ctx context.Context, c client.Client, _ string) ([]string, error) {
	policy := &admissionv1.ValidatingAdmissionPolicy{}
	err := c.Get(ctx, client.ObjectKey{Name: freeze.Name}, policy)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("validatingadmissionpolicy %s: %w", freeze.Name, err)
	}
	return []string{"validatingadmissionpolicy " + policy.Name}, nil
}
