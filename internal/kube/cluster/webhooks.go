package cluster

import (
	"context"
	"slices"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
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
func WebhookServices(ctx context.Context, c *Cluster) ([]types.NamespacedName, error) {
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

// Called is a Service that API servers call themselves.
type Called struct {
	Service types.NamespacedName
	// By is what names it, as kind and name.
	By string
	// Rules are those of requests that wait for its answer and are refused without one; none if
	// they are let through, or it does not judge.
	Rules []admissionv1.RuleWithOperations
	// Namespaces and Objects choose among these requests; nil chooses all. Conditions says that
	// expressions choose, too.
	Namespaces, Objects *metav1.LabelSelector
	Conditions          bool
}

// called finds the Services that API servers call because of an object.
func called(o client.Object) (all []Called) {
	switch o := o.(type) {
	case *admissionv1.ValidatingWebhookConfiguration:
		for i := range o.Webhooks {
			all = append(all, asked("ValidatingWebhookConfiguration "+o.Name, &o.Webhooks[i])...)
		}
	case *admissionv1.MutatingWebhookConfiguration:
		for i := range o.Webhooks {
			w := &o.Webhooks[i]
			all = append(all, asked("MutatingWebhookConfiguration "+o.Name, &admissionv1.ValidatingWebhook{
				ClientConfig: w.ClientConfig, FailurePolicy: w.FailurePolicy, Rules: w.Rules, NamespaceSelector: w.NamespaceSelector,
				ObjectSelector: w.ObjectSelector, MatchConditions: w.MatchConditions,
			})...)
		}
	case *apiextensionsv1.CustomResourceDefinition:
		if c := o.Spec.Conversion; c != nil && c.Webhook != nil && c.Webhook.ClientConfig != nil && c.Webhook.ClientConfig.Service != nil {
			s := c.Webhook.ClientConfig.Service
			all = append(
				all,
				Called{Service: types.NamespacedName{Namespace: s.Namespace, Name: s.Name}, By: "CustomResourceDefinition " + o.Name},
			)
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

// asked is the Service of a webhook, if it has one in the cluster.
func asked(by string, w *admissionv1.ValidatingWebhook) []Called {
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

// apiService is the kind by which API servers serve what others implement.
const apiService = "APIService"

// apiServices is an empty list of them.
func apiServices() *unstructured.UnstructuredList {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("apiregistration.k8s.io/v1")
	list.SetKind(apiService + "List")
	return list
}
