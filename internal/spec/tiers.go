package spec

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec/tier"
)

// validateTiers lets a tier be without any rule: annotations of Services and the lookup can name it.
func validateTiers(m *v1alpha1.MigrationSpec) error {
	names, owner := map[string]string{}, map[string]string{}
	for i, t := range m.Tiers {
		field := fmt.Sprintf("spec.tiers[%d]", i)
		if err := name(field+".name", t.Name, names); err != nil {
			return err
		}
		if t.Name == tier.ClusterServices {
			return &Error{
				Field: field + ".name", Problem: fmt.Sprintf("%q is the tier of the cluster's own Services", t.Name),
				Hint: "give the tier another name; to move one of the cluster's own Services with it, name that one under services",
			}
		}
		if t.Selector != nil {
			if _, err := metav1.LabelSelectorAsSelector(t.Selector); err != nil {
				return &Error{
					Field:   field + ".selector",
					Problem: err.Error(),
					Hint:    "write it as in a Deployment: matchLabels, matchExpressions",
				}
			}
		}
		if err := validateMembers(field, t, owner); err != nil {
			return err
		}
		if err := notNegative(field+".pause", t.Pause); err != nil {
			return err
		}
	}
	return validateDefaultTier(m)
}

// name is that of a tier or hook; seen collects where each was used.
func name(field, text string, seen map[string]string) error {
	if problems := validation.IsDNS1123Label(text); len(problems) > 0 {
		return &Error{
			Field: field, Problem: fmt.Sprintf("%q cannot be used: %s", text, problems[0]),
			Hint: "use lower-case letters, digits and dashes, at most 63",
		}
	}
	if first, ok := seen[text]; ok {
		return &Error{Field: field, Problem: fmt.Sprintf("%q is also %s", text, first), Hint: "give each its own name"}
	}
	seen[text] = field
	return nil
}

// validateMembers looks at the namespaces and Services of a tier; owner collects which tier names a Service.
func validateMembers(field string, t v1alpha1.TierSpec, owner map[string]string) error {
	for i, namespace := range t.Namespaces {
		if len(validation.IsDNS1123Label(namespace)) > 0 {
			return &Error{
				Field: fmt.Sprintf("%s.namespaces[%d]", field, i), Problem: fmt.Sprintf("%q is not a namespace", namespace),
				Hint: "write names of namespaces; patterns are not understood",
			}
		}
	}
	for i, key := range t.Services {
		at := fmt.Sprintf("%s.services[%d]", field, i)
		namespace, svc, _ := strings.Cut(key, "/")
		if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Label(svc)) > 0 {
			return &Error{Field: at, Problem: fmt.Sprintf("%q is not a Service", key), Hint: "write it as namespace/name"}
		}
		if first, ok := owner[key]; ok {
			return &Error{Field: at, Problem: fmt.Sprintf("%s is also %s", key, first), Hint: "name a Service once"}
		}
		owner[key] = at
	}
	return nil
}

func validateDefaultTier(m *v1alpha1.MigrationSpec) error {
	if m.DefaultTier == "" {
		return nil
	}
	// The tier of the cluster's own Services is no place for what nobody knows.
	own := slices.DeleteFunc(tier.Names(m), func(n string) bool { return n == tier.ClusterServices })
	if slices.Contains(own, m.DefaultTier) {
		return nil
	}
	return &Error{
		Field: "spec.defaultTier", Problem: fmt.Sprintf("there is no tier %q", m.DefaultTier),
		Hint: fmt.Sprintf("use one of %v, or add it to spec.tiers", own),
	}
}
