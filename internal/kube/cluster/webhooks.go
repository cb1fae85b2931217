package cluster

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WebhookRights are what WebhookServices needs.
func WebhookRights() []Right {
	return append(
		Grant("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"),
		Grant("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list")...,
	)
}

// WebhookServices are the Services that admission webhooks call, each once.
func (c *Cluster) WebhookServices(ctx context.Context) ([]types.NamespacedName, error) {
	var all []types.NamespacedName
	take := func(config admissionv1.WebhookClientConfig) {
		if config.Service == nil {
			return
		}
		key := types.NamespacedName{Namespace: config.Service.Namespace, Name: config.Service.Name}
		if !slices.Contains(all, key) {
			all = append(all, key)
		}
	}
	err := eachPage(ctx, c, &admissionv1.ValidatingWebhookConfigurationList{}, pageSize, func(o client.Object) {
		for _, w := range o.(*admissionv1.ValidatingWebhookConfiguration).Webhooks {
			take(w.ClientConfig)
		}
	})
	if err != nil {
		return nil, err
	}
	err = eachPage(ctx, c, &admissionv1.MutatingWebhookConfigurationList{}, pageSize, func(o client.Object) {
		for _, w := range o.(*admissionv1.MutatingWebhookConfiguration).Webhooks {
			take(w.ClientConfig)
		}
	})
	return all, err
}
