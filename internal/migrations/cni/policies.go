package cni

import (
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Loss is a policy that does not hold with the new network, and why.
type Loss struct {
	// Object as kind and namespace/name.
	Object, Reason string
}

// lost are the policies that hold now and will not.
func (s *Survey) lost() []Loss {
	if !s.enforcing() {
		return nil
	}
	var out []Loss
	if !s.enforced() {
		for i := range s.Policies.Standard {
			p := &s.Policies.Standard[i]
			out = append(out, Loss{"NetworkPolicy " + p.Namespace + "/" + p.Name, fmt.Sprintf("%s enforces no policies", s.Spec.To)})
		}
	}
	for _, o := range s.Policies.Own {
		out = append(
			out,
			Loss{keyOf(o).String(), fmt.Sprintf("%s does not know the kind %s of %s", s.Spec.To, o.GetKind(), o.GroupVersionKind().Group)},
		)
	}
	return out
}

// gained are the policies that did not hold and will.
func (s *Survey) gained() []string {
	if s.enforcing() || !s.enforced() {
		return nil
	}
	var out []string
	for i := range s.Policies.Standard {
		out = append(out, s.Policies.Standard[i].Namespace+"/"+s.Policies.Standard[i].Name)
	}
	return out
}

// webhook takes one if it refuses what it cannot be asked about, and is answered for by a Service.
func (s *Survey) webhook(
	config, name string, policy *admissionv1.FailurePolicyType, c admissionv1.WebhookClientConfig, in *metav1.LabelSelector,
	rules []admissionv1.RuleWithOperations,
) {
	if c.Service == nil || ptr.Deref(policy, admissionv1.Fail) != admissionv1.Fail {
		return
	}
	s.Webhooks = append(s.Webhooks, Webhook{
		Config: config, Name: name, Service: c.Service.Namespace + "/" + c.Service.Name, Namespaces: in, Rules: rules,
	})
}

// blocks reports whether a webhook is asked about what is written while pods have no network: objects of the manifests, and pods and
// DaemonSets of the network and of replumb. A selector that leaves all of their namespaces out keeps it from that.
func (w *Webhook) blocks(namespaces []string) bool {
	about := slices.ContainsFunc(w.Rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.ContainsFunc(r.Resources, func(resource string) bool {
			resource, _, _ = strings.Cut(resource, "/")
			return slices.Contains([]string{
				"*", "pods", "nodes", "daemonsets", "controllerrevisions", "configmaps", "serviceaccounts", "namespaces", "clusterroles",
				"clusterrolebindings", "customresourcedefinitions",
			}, resource)
		})
	})
	if !about || w.Namespaces == nil {
		return about
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Namespaces)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(namespaces, func(ns string) bool {
		return selector.Matches(labels.Set{corev1.LabelMetadataName: ns})
	})
}

// critical are the namespaces in which something has to be written while pods have no network.
func (s *Survey) critical() []string {
	all := []string{metav1.NamespaceSystem, v1alpha1.SystemNamespace}
	if s.Manifests != nil {
		for _, o := range s.Manifests.Objects {
			if ns := o.GetNamespace(); ns != "" && !slices.Contains(all, ns) {
				all = append(all, ns)
			}
		}
	}
	return all
}
