package copyrules

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

// glob matches a name against a pattern in which * stands for any part of it, also for none.
func glob(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		i := strings.Index(name, part)
		if i < 0 {
			return false
		}
		name = name[i+len(part):]
	}
	return true
}

func matchesAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return glob(p, name) })
}

func chosen(f v1alpha1.NameFilter, name string) bool {
	return (len(f.Include) == 0 || matchesAny(f.Include, name)) && !matchesAny(f.Exclude, name)
}

func validatePatterns(field string, patterns []string) error {
	for i, p := range patterns {
		if p == "" || strings.ContainsAny(p, "/ \t\n,") {
			return &spec.Error{
				Field: fmt.Sprintf("%s[%d]", field, i), Problem: fmt.Sprintf("%q is no name, nor a pattern of one", p),
				Hint: "write a name in lower case; * stands for any part of it",
			}
		}
	}
	return nil
}

func selector(field string, s *metav1.LabelSelector) (labels.Selector, error) {
	if s == nil {
		return nil, nil
	}
	compiled, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		return nil, &spec.Error{Field: field, Problem: err.Error(), Hint: "write it as in a Deployment: matchLabels or matchExpressions"}
	}
	return compiled, nil
}
