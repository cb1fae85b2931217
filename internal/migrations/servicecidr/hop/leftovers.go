package hop

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
	"github.com/replumb/replumb/internal/network/bridge"
)

// RemoveLeftovers removes canaries, barriers, sync windows and taken pods of killed runs, which a
// run that turns back does not pass again.
func RemoveLeftovers(c client.Client, migration string) engine.Step {
	roles := []string{v1alpha1.RoleCanary, v1alpha1.RoleSentinel, v1alpha1.RoleNudge}
	leaver := leaving.Leaver{Client: c, Migration: migration}
	return &engine.Write{
		Name: "tidy/remains", About: "Remove the remains of interrupted runs", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error {
			for _, role := range roles {
				left, err := thrownAway(ctx, c, migration, role)
				if err != nil {
					return err
				}
				if len(left) > 0 {
					return engine.NotYet("%s %s/%s is still there", role, left[0].Namespace, left[0].Name)
				}
			}
			trials, err := trialsLeft(ctx, c, migration)
			if err != nil {
				return err
			}
			for i := range trials {
				return engine.NotYet("service %s/%s is still there", trials[i].Namespace, trials[i].Name)
			}
			pods, err := leaver.Find(ctx, metav1.NamespaceAll)
			for i := range pods {
				return engine.NotYet("pod %s/%s has not ended yet", pods[i].Namespace, pods[i].Name)
			}
			return err
		},
		Write: func(ctx context.Context) error {
			if err := removeCanaries(ctx, c, migration); err != nil {
				return err
			}
			if err := removeTrials(ctx, c, migration); err != nil {
				return err
			}
			if err := bridge.RemoveThrowaways(ctx, c, migration); err != nil {
				return err
			}
			return endTaken(ctx, leaver)
		},
		Changes: func() ([]engine.Change, error) {
			var changes []engine.Change
			for _, role := range roles {
				changes = append(changes, engine.Change{
					Verb: "delete", Object: "Service " + v1alpha1.SystemNamespace + "/… (" + v1alpha1.LabelRole + "=" + role + ")",
				})
			}
			return append(changes,
				engine.Change{Verb: "delete", Object: "EndpointSlice " + v1alpha1.SystemNamespace + "/… (theirs)"},
				engine.Change{Verb: "delete", Object: "Service */" + trialPrefix + "…"},
				engine.Change{Verb: "delete", Object: "Pod */… (" + v1alpha1.LabelRole + "=" + v1alpha1.RoleLeaving + ")"},
			), nil
		},
	}
}

func endTaken(ctx context.Context, leaver leaving.Leaver) error {
	pods, err := leaver.Find(ctx, metav1.NamespaceAll)
	if err != nil {
		return err
	}
	for i := range pods {
		if err := leaver.Part(ctx, &pods[i]); err != nil {
			return err
		}
		if err := leaver.End(ctx, &pods[i]); err != nil {
			return err
		}
	}
	return nil
}

func thrownAway(ctx context.Context, c client.Client, migration, role string) ([]corev1.Service, error) {
	all := &corev1.ServiceList{}
	err := c.List(ctx, all, client.InNamespace(v1alpha1.SystemNamespace),
		client.MatchingLabels{v1alpha1.LabelMigration: migration, v1alpha1.LabelRole: role})
	if err != nil {
		return nil, fmt.Errorf("looking for a %s: %w", role, err)
	}
	return all.Items, nil
}

func removeCanaries(ctx context.Context, c client.Client, migration string) error {
	all, err := thrownAway(ctx, c, migration, v1alpha1.RoleCanary)
	if err != nil {
		return err
	}
	for i := range all {
		svc := &all[i]
		e := &services.Entry{Service: svc}
		if err := bridge.Remove(ctx, c, e.BridgeKey()); err != nil {
			return fmt.Errorf("bridge %s: %w", e.BridgeKey(), err)
		}
		if len(services.AnswersAt(svc)) > 0 { // an address that leads somewhere is given to no one
			if err := removeCanary(ctx, c, svc); err != nil {
				return err
			}
		}
		if err := bridge.ReleaseAll(ctx, c, migration, e.BridgeKey()); err != nil {
			return err
		}
		if err := removeCanary(ctx, c, svc); err != nil {
			return err
		}
	}
	return nil
}

func removeCanary(ctx context.Context, c client.Client, svc *corev1.Service) error {
	if err := client.IgnoreNotFound(c.Delete(ctx, svc)); err != nil {
		return fmt.Errorf("service %s/%s: %w", svc.Namespace, svc.Name, err)
	}
	return nil
}
