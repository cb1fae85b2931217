package mirror

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// lookAtWebhooks finds webhooks of the target, not copied ones, that refuse without a backend.
func (j *Job) lookAtWebhooks(ctx context.Context, s *Inventory) error {
	answered, err := j.to.answered(ctx)
	if err != nil {
		return err
	}
	blind := func(policy *admissionv1.FailurePolicyType, c admissionv1.WebhookClientConfig) bool {
		return (policy == nil || *policy == admissionv1.Fail) && c.Service != nil && !answered[c.Service.Namespace+"/"+c.Service.Name]
	}
	validating, err := cluster.List[admissionv1.ValidatingWebhookConfiguration](ctx, j.to,
		&admissionv1.ValidatingWebhookConfigurationList{})
	if err != nil {
		return err
	}
	for _, c := range validating {
		of := func(w admissionv1.ValidatingWebhook) bool { return blind(w.FailurePolicy, w.ClientConfig) }
		if c.Labels[v1alpha1.LabelMirror] == "" && slices.ContainsFunc(c.Webhooks, of) {
			s.Blind = append(s.Blind, "ValidatingWebhookConfiguration "+c.Name)
		}
	}
	mutating, err := cluster.List[admissionv1.MutatingWebhookConfiguration](ctx, j.to, &admissionv1.MutatingWebhookConfigurationList{})
	for _, c := range mutating {
		of := func(w admissionv1.MutatingWebhook) bool { return blind(w.FailurePolicy, w.ClientConfig) }
		if c.Labels[v1alpha1.LabelMirror] == "" && slices.ContainsFunc(c.Webhooks, of) {
			s.Blind = append(s.Blind, "MutatingWebhookConfiguration "+c.Name)
		}
	}
	return err
}

func (s *side) answered(ctx context.Context) (map[string]bool, error) {
	all, err := cluster.List[discoveryv1.EndpointSlice](ctx, s, &discoveryv1.EndpointSliceList{})
	answered := map[string]bool{}
	for _, e := range all {
		ready := func(p discoveryv1.Endpoint) bool { return p.Conditions.Ready == nil || *p.Conditions.Ready }
		if slices.ContainsFunc(e.Endpoints, ready) {
			answered[e.Namespace+"/"+e.Labels[discoveryv1.LabelServiceName]] = true
		}
	}
	return answered, err
}
