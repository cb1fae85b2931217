package switchover

import (
	"fmt"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/replumb/replumb/internal/migrations/cni/manifests"
)

// BrokenPolicy is a policy that does not hold with the new network, and why.
type BrokenPolicy struct {
	// Object as kind and namespace/name.
	Object, Reason string
}

func (s *Inventory) lost() []BrokenPolicy {
	if !s.Enforcing() {
		return nil
	}
	var out []BrokenPolicy
	if !s.Enforced() {
		for i := range s.Policies.Standard {
			p := &s.Policies.Standard[i]
			out = append(out, BrokenPolicy{"NetworkPolicy " + p.Namespace + "/" + p.Name, fmt.Sprintf("%s enforces no policies", s.Spec.To)})
		}
	}
	for _, o := range s.Policies.Own {
		reason := fmt.Sprintf("%s does not know the kind %s of %s", s.Spec.To, o.GetKind(), o.GroupVersionKind().Group)
		out = append(out, BrokenPolicy{manifests.KeyOf(o).String(), reason})
	}
	return out
}

func (s *Inventory) gained() []string {
	if s.Enforcing() || !s.Enforced() {
		return nil
	}
	var out []string
	for i := range s.Policies.Standard {
		out = append(out, s.Policies.Standard[i].Namespace+"/"+s.Policies.Standard[i].Name)
	}
	return out
}

// Webhook is one that refuses what it cannot be asked about, and is answered for by pods.
type Webhook struct {
	// Config it is in, as kind and name.
	Config, Name, Service string
	Namespaces            *metav1.LabelSelector
	Rules                 []admissionv1.RuleWithOperations
}

// Refusing are the webhooks of a configuration that refuse what they cannot be asked about, and are
// answered for by a Service.
func Refusing(config string, all []admissionv1.ValidatingWebhook) []Webhook {
	var out []Webhook
	for _, w := range all {
		at := w.ClientConfig.Service
		if at != nil && ptr.Deref(w.FailurePolicy, admissionv1.Fail) == admissionv1.Fail {
			out = append(out, Webhook{
				Config: config, Name: w.Name, Service: at.Namespace + "/" + at.Name, Namespaces: w.NamespaceSelector, Rules: w.Rules,
			})
		}
	}
	return out
}
