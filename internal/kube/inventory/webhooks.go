package inventory

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// WebhookRights are for WebhookServices.
func WebhookRights() []access.Right {
	return append(
		access.Grant("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"),
		access.Grant("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list")...,
	)
}

// WebhookServices are the Services of admission webhooks, each once.
func WebhookServices(ctx context.Context, c *cluster.Cluster) ([]types.NamespacedName, error) {
	var all []types.NamespacedName
	take := func(o client.Object) {
		for _, called := range servicesCalledFor(o) {
			if !slices.Contains(all, called.Service) {
				all = append(all, called.Service)
			}
		}
	}
	for _, list := range []client.ObjectList{
		&admissionv1.ValidatingWebhookConfigurationList{}, &admissionv1.MutatingWebhookConfigurationList{},
	} {
		if err := cluster.EachPage(ctx, c, list, cluster.PageSize, take); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Called is a Service that API servers call themselves.
type Called struct {
	Service types.NamespacedName
	By      string // as kind and name
	// Rules select requests that are refused without its answer.
	Rules []admissionv1.RuleWithOperations
	// Namespaces and Objects narrow Rules, as do expressions if Conditions is true.
	Namespaces, Objects *metav1.LabelSelector
	Conditions          bool
}

func servicesCalledFor(o client.Object) (all []Called) {
	switch o := o.(type) {
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			all = append(all, webhookService("ValidatingWebhookConfiguration "+o.Name, &o.Webhooks[i])...)
		}
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			w := &o.Webhooks[i]
			all = append(all, webhookService("MutatingWebhookConfiguration "+o.Name, &admissionv1.ValidatingWebhook{
				ClientConfig: w.ClientConfig, FailurePolicy: w.FailurePolicy, Rules: w.Rules, NamespaceSelector: w.NamespaceSelector,
				ObjectSelector: w.ObjectSelector, MatchConditions: w.MatchConditions,
			})...)
		}
	case *apiextensionsv1.CustomResourceDefinition:
		if c := o.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil && c.Webhook.ClientConfig.Service != nil {
			s := c.Webhook.ClientConfig.Service
			all = append(all, Called{
				Service: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, By: "CustomResourceDefinition " + o.Name,
			})
		}
	case *unstructured.Unstructured:
		ns, _, _ := unstructured.NestedString(o.Object, "spec", "service", "namespace")
		name, _, _ := unstructured.NestedString(o.Object, "spec", "service", "name")
		if name != "" && o.GetKind() == apiService {
			all = append(all, Called{Service: types.NamespacedName{Namespace: ns, Name: name}, By: apiService + " " + o.GetName()})
		}
	}
	return all
}

// webhookService is empty for a webhook that is called by a URL.
func webhookService(by string, w *admissionv1.ValidatingWebhook) []Called {
	s := w.ClientConfig.Service
	if s == nil {
		return nil
	}
	c := Called{Service: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, By: by}
	if w.FailurePolicy == nil || *w.FailurePolicy == admissionv1.Fail {
		c.Rules, c.Namespaces, c.Objects, c.Conditions = w.Rules, w.NamespaceSelector, w.ObjectSelector, len(w.MatchConditions) > 0
	}
	return []Called{c}
}

const apiService = "APIService"

func apiServices() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("apiregistration.k8s.io/v1")
	list.SetKind(apiService + "List")
	return list
}
