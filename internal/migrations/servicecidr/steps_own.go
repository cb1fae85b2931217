package servicecidr

import (
	"context"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/leaving"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// always is a step that writes in every run, since to compare would cost as much as to write.
func always(id, title string, write func(context.Context) error, changes func() ([]engine.Change, error)) engine.Step {
	return &engine.Observed[struct{}]{
		Name: id, About: title, As: engine.RoleOwn, Changes: changes,
		Look:  func(context.Context) (engine.State, struct{}, error) { return engine.Pending, struct{}{}, nil },
		Write: func(ctx context.Context, _ struct{}) error { return write(ctx) },
		Proof: func(context.Context) error { return nil },
	}
}

// mark tells the freeze that the Services of a batch are in flight.
func mark(c client.Client, migration string, b *batch) engine.Step {
	return inFlight(c, migration, "freeze/"+b.String(), "Freeze "+b.String(), b)
}

// thaw tells the freeze that a batch has arrived: what of its Services still must not change, they say themselves.
func thaw(c client.Client, migration string, b *batch) engine.Step {
	return inFlight(c, migration, "thaw/"+b.String(), "Let "+b.String()+" change, but for what the overlap needs", &batch{})
}

// inFlight has the freeze list the Services of a batch, and no others.
func inFlight(c client.Client, migration, id, title string, b *batch) engine.Step {
	write := func(ctx context.Context) error { return freeze.Mark(ctx, c, migration, b.keys()) }
	return always(id, title, write, func() ([]engine.Change, error) {
		return []engine.Change{{
			Verb: "update", Object: "ValidatingAdmissionPolicy " + freeze.Name, Body: map[string]any{"inFlight": b.names()},
		}}, nil
	})
}

// note writes the progress on the Migration once every hop of a batch is proven.
func note(c client.Client, name string, b *batch) engine.Step {
	counts := b.counts
	counts.Bridged = max(counts.Bridged, counts.Moved)
	write := func(ctx context.Context) error {
		return migration.UpdateStatus(ctx, c, name, func(st *v1alpha1.MigrationStatus) {
			st.Phase, st.Counts, st.Tiers = v1alpha1.PhaseApplying, counts, b.tiers
			migration.SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, b.String()+" has moved")
		})
	}
	return always("note/"+b.String(), "Record that "+b.String()+" has moved", write,
		migration.StatusChange(name, map[string]any{"phase": v1alpha1.PhaseApplying, "counts": counts, "tiers": b.tiers}))
}

// drain waits until the latest move is long enough ago.
func drain(c client.Client, migration string, length time.Duration, now func() time.Time) engine.Step {
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

// lastMove is when the latest Service moved; zero, if none has. Only those count that have an address reserved.
func lastMove(ctx context.Context, c client.Client, migration string) (latest time.Time, err error) {
	services, addresses := &corev1.ServiceList{}, &networkingv1.IPAddressList{}
	if err := c.List(ctx, services); err != nil {
		return latest, fmt.Errorf("listing services: %w", err)
	}
	if err := c.List(ctx, addresses, client.MatchingLabels{v1alpha1.LabelMigration: migration}); err != nil {
		return latest, fmt.Errorf("listing ipaddresses: %w", err)
	}
	held := reservations(&cluster.Snapshot{IPAddresses: addresses.Items})
	for i := range services.Items {
		svc := &services.Items[i]
		for _, r := range held.of(svc, migration) {
			at := movedAt(svc, r.since)
			if svc.Annotations[v1alpha1.AnnotationMovedAt] != "" && at.After(latest) {
				latest = at
			}
		}
	}
	return latest, nil
}

// removeRemains removes what runs that were killed left of canaries, barriers and sync windows, and pods that were taken from Deployments which
// are gone. A run that goes on does so by itself; one that turns back would not come by there again.
func removeRemains(c client.Client, migration string) engine.Step {
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
				engine.Change{Verb: "delete", Object: "Pod */… (" + v1alpha1.LabelRole + "=" + v1alpha1.RoleLeaving + ")"},
			), nil
		},
	}
}

// endTaken ends pods that no Deployment has any more.
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

// nothingLeft looks whether anything of the migration is left on the cluster, before it is called over.
func nothingLeft(c client.Client, survey *Survey, to engine.Direction) engine.Step {
	looks := []func(context.Context, client.Client, string) ([]string, error){leftAddresses, leftFreeze}
	if to == engine.Forward {
		looks = append(looks, leftRanges)
	}
	return &engine.Wait{
		Name: "clean", About: "Verify that the cluster is clean of the migration",
		For: func(ctx context.Context) error {
			left, err := survey.leftServices(ctx, c)
			if err != nil {
				return err
			}
			for _, look := range looks {
				found, err := look(ctx, c, survey.Spec.Name)
				if err != nil {
					return err
				}
				left = append(left, found...)
			}
			if len(left) > 0 {
				return engine.NotYet("still there: %s", listing(left))
			}
			return nil
		},
	}
}

// leftServices are the bridges of what moved, replumb's own Services, and annotations on what moved. What other Services say of
// themselves does not count.
func (s *Survey) leftServices(ctx context.Context, c client.Client) (left []string, err error) {
	bridges, moved := map[types.NamespacedName]bool{}, map[types.UID]bool{}
	for _, e := range slices.Concat(s.everything(), s.Departed) {
		bridges[e.BridgeKey()], moved[e.Service.UID] = true, true
	}
	for _, b := range s.Orphans {
		bridges[client.ObjectKeyFromObject(b)] = true
	}
	services := &corev1.ServiceList{}
	if err := c.List(ctx, services); err != nil {
		return nil, fmt.Errorf("listing services: %w", err)
	}
	for i := range services.Items {
		svc := &services.Items[i]
		key := client.ObjectKeyFromObject(svc)
		switch {
		case (bridges[key] || replumbs(svc)) && svc.Labels[v1alpha1.LabelMigration] == s.Spec.Name:
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

// leftRanges are Service ranges that still have the migration's label: by the end of finish each is gone, or the cluster's own.
func leftRanges(ctx context.Context, c client.Client, migration string) (left []string, err error) {
	all, err := serviceCIDRs(ctx, c)
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

// leftFreeze takes any freeze for one that is left: there can be but one, whichever migration it is of.
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
