package podcidr

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// scaleStep gives a Deployment one more pod, and remembers on it how many it had.
type scaleStep struct {
	tools Tools
	key   types.NamespacedName
}

func (s *scaleStep) ID() string    { return "scale/" + s.key.String() }
func (s *scaleStep) Title() string { return fmt.Sprintf("Give Deployment %s one more pod", s.key) }

func (s *scaleStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *scaleStep) Do(ctx context.Context) error {
	d, err := readDeployment(ctx, s.tools, s.key)
	if err != nil || d == nil || d.Annotations[v1alpha1.AnnotationReplicas] != "" {
		return err
	}
	return patchReplicas(ctx, s.tools, d, s.patch(replicas(d)))
}

func (s *scaleStep) patch(had int32) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationReplicas: strconv.Itoa(int(had))}},
		"spec":     map[string]any{"replicas": had + 1},
	}
}

func (s *scaleStep) Verify(ctx context.Context) error {
	d, err := readDeployment(ctx, s.tools, s.key)
	switch {
	case err != nil || d == nil:
		return err
	case d.Annotations[v1alpha1.AnnotationReplicas] == "":
		return engine.NotYet("deployment %s has not been scaled", s.key)
	case d.Status.ObservedGeneration < d.Generation || d.Status.AvailableReplicas < replicas(d):
		return engine.NotYet("deployment %s has %d of %d pods available", s.key, d.Status.AvailableReplicas, replicas(d))
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *scaleStep) Preview() ([]engine.Change, error) {
	return []engine.Change{
		{Verb: "patch", Object: "Deployment " + s.key.String(), Body: map[string]any{"spec": map[string]any{"replicas": "one more"}}},
	}, nil
}

// unscaleStep gives every Deployment back how many pods it had. One that somebody else has scaled since is left alone.
type unscaleStep struct {
	tools Tools
}

// scaled are the Deployments that carry how many pods they had.
func (s *unscaleStep) scaled(ctx context.Context) ([]appsv1.Deployment, error) {
	all := &appsv1.DeploymentList{}
	if err := s.tools.Cluster.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing deployments: %w", err)
	}
	return slices.DeleteFunc(all.Items, func(d appsv1.Deployment) bool { return d.Annotations[v1alpha1.AnnotationReplicas] == "" }), nil
}

func (*unscaleStep) ID() string    { return "unscale" }
func (*unscaleStep) Title() string { return "Give Deployments back the number of pods they had" }

func (s *unscaleStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *unscaleStep) Do(ctx context.Context) error {
	scaled, err := s.scaled(ctx)
	if err != nil {
		return err
	}
	for i := range scaled {
		d := &scaled[i]
		patch := map[string]any{"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationReplicas: nil}}}
		had, err := strconv.ParseInt(d.Annotations[v1alpha1.AnnotationReplicas], 10, 32)
		if err == nil && int64(replicas(d)) == had+1 {
			patch["spec"] = map[string]any{"replicas": had}
		}
		if err := patchReplicas(ctx, s.tools, d, patch); err != nil {
			return err
		}
	}
	return nil
}

func (s *unscaleStep) Verify(ctx context.Context) error {
	scaled, err := s.scaled(ctx)
	if err == nil && len(scaled) > 0 {
		return engine.NotYet("deployment %s/%s has not been scaled back", scaled[0].Namespace, scaled[0].Name)
	}
	return err
}

func readDeployment(ctx context.Context, tools Tools, key types.NamespacedName) (*appsv1.Deployment, error) {
	d := &appsv1.Deployment{}
	err := tools.Cluster.Get(ctx, key, d)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("deployment %s: %w", key, err)
	}
	return d, nil
}

// patchReplicas carries the version that was looked at.
func patchReplicas(ctx context.Context, tools Tools, d *appsv1.Deployment, patch map[string]any) error {
	patch["metadata"].(map[string]any)["resourceVersion"] = d.ResourceVersion
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	if err := tools.Cluster.Patch(
		ctx,
		d,
		client.RawPatch(types.MergePatchType, body),
		client.FieldOwner(v1alpha1.FieldManager),
	); err != nil {
		return fmt.Errorf("deployment %s/%s: %w", d.Namespace, d.Name, err)
	}
	return nil
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// Critical are the Deployments that must not be without a pod for a moment and have but one: those behind the cluster's
// DNS and behind admission webhooks, and those that the Migration names, however many pods they have.
func (s *Survey) Critical() []types.NamespacedName {
	wanted := slices.Clone(s.Spec.Scale)
	for i := range s.Workloads.Deployments {
		d := &s.Workloads.Deployments[i]
		key := client.ObjectKeyFromObject(d)
		if !slices.Contains(wanted, key) && replicas(d) == 1 && s.backs(d) {
			wanted = append(wanted, key)
		}
	}
	return wanted
}

// backs reports whether a critical Service leads to a Deployment's pods.
func (s *Survey) backs(d *appsv1.Deployment) bool {
	return slices.ContainsFunc(s.CriticalServices, func(svc corev1.Service) bool {
		if svc.Namespace != d.Namespace || len(svc.Spec.Selector) == 0 {
			return false
		}
		for k, v := range svc.Spec.Selector {
			if d.Spec.Template.Labels[k] != v {
				return false
			}
		}
		return true
	})
}
