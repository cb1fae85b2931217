package spare

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/fieldmanagers"
)

func (f *Found) Up(c client.Client) []engine.Step {
	if f == nil {
		return nil
	}
	var steps []engine.Step
	for _, key := range f.Critical {
		steps = append(steps, up(c, f.Spec.Migration, key, slices.Contains(f.Scaled, key)))
	}
	return steps
}

// up gives a Deployment one more pod, and notes how many it had. All its pods have to serve then;
// where an earlier run has scaled it, as many as before, since a node may be drained by now. One
// whose owner takes the pod back goes on without it.
func up(c client.Client, migration string, key types.NamespacedName, scaled bool) engine.Step {
	var gave int32
	var takenBack string
	read := func(ctx context.Context) (*appsv1.Deployment, error) {
		d, err := readDeployment(ctx, c, key)
		if err != nil || d == nil {
			return nil, err
		}
		if gave > 0 && replicas(d) < gave {
			takenBack = fmt.Sprintf("deployment %s has no pod more: the number was taken back (spec.replicas is written by %s)",
				key, fieldmanagers.Of(d, "spec", "replicas"))
			return nil, nil
		}
		if had(d, migration) == "" {
			return d, engine.NotYet("deployment %s has not been scaled", key)
		}
		want := wanted(d, migration, scaled)
		if d.Status.ObservedGeneration < d.Generation || d.Status.AvailableReplicas < want {
			return nil, engine.NotYet("deployment %s has %d of %d pods available", key, d.Status.AvailableReplicas, want)
		}
		return nil, nil
	}
	return &engine.Observed[*appsv1.Deployment]{
		Name: "scale/" + key.String(), About: fmt.Sprintf("Give Deployment %s one more pod", key),
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, unscaled *appsv1.Deployment) error {
			if unscaled == nil {
				return nil
			}
			n, err := before(ctx, c, migration, unscaled)
			if err != nil {
				return err
			}
			err = patchReplicas(ctx, c, unscaled, patch(migration, strconv.Itoa(int(n)), n+1))
			if err == nil {
				gave = n + 1
			}
			return err
		},
		Remark: func() string { return takenBack },
		Changes: engine.Shows(
			engine.Change{Verb: "update", Object: "Migration " + migration, Body: map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationOneMore: key.String() + "=how many it has"}},
			}},
			engine.Change{Verb: "patch", Object: "Deployment " + key.String(), Body: patch(migration, "how many it has", "one more")},
		),
	}
}

// before is how many pods a Deployment had before this migration scaled it, and records it. One
// that has lost the annotation, and kept the pod, gets no second one.
func before(ctx context.Context, c client.Client, migration string, d *appsv1.Deployment) (int32, error) {
	key, n := client.ObjectKeyFromObject(d), replicas(d)
	err := keep(ctx, c, migration, func(r record) {
		if had, known := r[key]; known && had+1 == n {
			n = had
		}
		r[key] = n
	})
	return n, err
}

// wanted is how many pods have to serve; scaled says that an earlier run gave the last one.
func wanted(d *appsv1.Deployment, migration string, scaled bool) int32 {
	n, err := strconv.ParseInt(had(d, migration), 10, 32)
	if !scaled || err != nil {
		return replicas(d)
	}
	return min(int32(n), replicas(d))
}

// had is how many pods a Deployment had before this migration scaled it; nothing, if it did not.
func had(d *appsv1.Deployment, migration string) string {
	of, n, _ := strings.Cut(d.Annotations[v1alpha1.AnnotationOneMore], "/")
	if of != migration {
		return ""
	}
	return n
}

func patch(migration, had string, wanted any) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationOneMore: migration + "/" + had}},
		"spec":     map[string]any{"replicas": wanted},
	}
}

// Back gives every Deployment back its number of pods, unless others have scaled it since.
func Back(c client.Client, migration string) engine.Step {
	read := func(ctx context.Context) ([]appsv1.Deployment, error) {
		recorded, err := recall(ctx, c, migration)
		if err != nil {
			return nil, err
		}
		all := &appsv1.DeploymentList{}
		if err := c.List(ctx, all); err != nil {
			return nil, fmt.Errorf("listing deployments: %w", err)
		}
		scaled := slices.DeleteFunc(all.Items, func(d appsv1.Deployment) bool { return had(&d, migration) == "" && !forgotten(&d, recorded) })
		switch {
		case len(scaled) > 0:
			return scaled, engine.NotYet("deployment %s/%s has not been scaled back", scaled[0].Namespace, scaled[0].Name)
		case len(recorded) > 0:
			return nil, engine.NotYet("migration %s still has on record what it scaled", migration)
		}
		return nil, nil
	}
	return &engine.Observed[[]appsv1.Deployment]{
		Name: "unscale", About: "Restore the number of pods of Deployments",
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, scaled []appsv1.Deployment) error {
			return scaleBack(ctx, c, migration, scaled)
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "Deployment */* that got one more pod", Body: map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationOneMore: nil}},
				"spec":     map[string]any{"replicas": "as before"},
			}},
			engine.Change{Verb: "update", Object: "Migration " + migration, Body: map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationOneMore: nil}},
			}},
		),
	}
}

// forgotten reports whether a Deployment has the pod more, and not the annotation.
func forgotten(d *appsv1.Deployment, recorded record) bool {
	n, known := recorded[client.ObjectKeyFromObject(d)]
	return known && d.Annotations[v1alpha1.AnnotationOneMore] == "" && replicas(d) == n+1
}

func scaleBack(ctx context.Context, c client.Client, migration string, scaled []appsv1.Deployment) error {
	recorded, err := recall(ctx, c, migration)
	if err != nil {
		return err
	}
	for i := range scaled {
		if err := patchReplicas(ctx, c, &scaled[i], backPatch(&scaled[i], migration, recorded)); err != nil {
			return err
		}
	}
	if len(recorded) == 0 {
		return nil
	}
	return keep(ctx, c, migration, func(r record) { clear(r) })
}

func backPatch(d *appsv1.Deployment, migration string, recorded record) map[string]any {
	patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationOneMore: nil}}}
	n, err := strconv.ParseInt(had(d, migration), 10, 32)
	switch {
	case err == nil && int64(replicas(d)) == n+1:
		patch["spec"] = map[string]any{"replicas": n}
	case forgotten(d, recorded):
		patch["spec"] = map[string]any{"replicas": recorded[client.ObjectKeyFromObject(d)]}
	}
	return patch
}

func readDeployment(ctx context.Context, c client.Client, key types.NamespacedName) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	err := c.Get(ctx, key, d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("deployment %s: %w", key, err)
	}
	return d, nil
}

// patchReplicas carries the version that was looked at.
func patchReplicas(ctx context.Context, c client.Client, d *appsv1.Deployment, patch map[string]any) error {
	patch["metadata"].(map[string]any)["resourceVersion"] = d.ResourceVersion
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	err = c.Patch(ctx, d, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil {
		return fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return nil
}

func labelsOf(d *appsv1.Deployment) labels.Set { return d.Spec.Template.Labels }
