// Package tier sorts Services by how critical they are.
package tier

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	// ClusterServices is the last tier: kube-dns, kubernetes and the like.
	ClusterServices = "cluster-services"
	// Default is the tier of all other Services if a Migration names no tiers.
	Default = "default"
)

// Names are the tiers of a Migration, in the order in which they move.
func Names(spec *v1alpha1.MigrationSpec) []string {
	var names []string
	for _, t := range spec.Tiers {
		names = append(names, t.Name)
	}
	if len(names) == 0 {
		names = []string{Default}
	}
	return append(names, ClusterServices)
}

// Rules say to which tier a Service belongs.
type Rules struct {
	names  []string
	rules  []rule
	other  string
	lookup bool
	own    func(*corev1.Service) bool
}

type rule struct {
	tier       string
	services   map[string]bool
	namespaces []string
	selector   labels.Selector
}

// NewRules reads a Migration's rules. own tells the cluster's own Services.
func NewRules(spec *v1alpha1.MigrationSpec, own func(*corev1.Service) bool) (Rules, error) {
	if own == nil {
		own = func(*corev1.Service) bool { return false }
	}
	r := Rules{names: Names(spec), other: spec.DefaultTier, lookup: spec.TierLookup != nil, own: own}
	if r.other == "" {
		r.other = r.names[len(r.names)-2]
	}
	if !slices.Contains(r.names, r.other) {
		return Rules{}, fmt.Errorf("the default tier %s does not exist", r.other)
	}
	for _, t := range spec.Tiers {
		one := rule{tier: t.Name, services: map[string]bool{}, namespaces: t.Namespaces}
		for _, key := range t.Services {
			one.services[key] = true
		}
		if t.Selector != nil {
			var err error
			if one.selector, err = metav1.LabelSelectorAsSelector(t.Selector); err != nil {
				return Rules{}, fmt.Errorf("the selector of tier %s: %w", t.Name, err)
			}
		}
		r.rules = append(r.rules, one)
	}
	return r, nil
}

func (r Rules) Names() []string { return slices.Clone(r.names) }

func (r rule) matches(svc *corev1.Service) bool {
	if len(r.namespaces) == 0 && r.selector == nil {
		return false
	}
	return (len(r.namespaces) == 0 || slices.Contains(r.namespaces, svc.Namespace)) &&
		(r.selector == nil || r.selector.Matches(labels.Set(svc.Labels)))
}

// ruled is a Service's tier by rules, or empty: by its owner, by the Migration for this Service, as
// the cluster's own, and only then by rules that match many.
func (r Rules) ruled(svc *corev1.Service) string {
	if named := svc.Annotations[v1alpha1.AnnotationTier]; slices.Contains(r.names, named) {
		return named
	}
	for _, one := range r.rules {
		if one.services[svc.Namespace+"/"+svc.Name] {
			return one.tier
		}
	}
	if r.own(svc) {
		return ClusterServices
	}
	for _, one := range r.rules {
		if one.matches(svc) {
			return one.tier
		}
	}
	return ""
}

// Problem is a Service whose tier someone should look at.
type Problem struct {
	Service types.NamespacedName
	// LookupSource is who was asked: SourceAnnotation or SourceLookup.
	Source LookupSource
	// Names is the tier that does not exist. It is empty if the lookup does not know the Service.
	Names string
	// Tier is the one the Service went to instead.
	Tier string
}

// LookupSource is where the tier of a Service comes from.
type LookupSource string

// The sources that can be wrong.
const (
	SourceAnnotation LookupSource = "annotation"
	SourceLookup     LookupSource = "lookup"
)

func (p Problem) String() string {
	switch {
	case p.Source == SourceAnnotation:
		return fmt.Sprintf("service %s: its annotation %s names tier %q, which does not exist; it moves with tier %s",
			p.Service, v1alpha1.AnnotationTier, p.Names, p.Tier)
	case p.Names == "":
		return fmt.Sprintf("service %s: the tier lookup does not know it; it moves with tier %s", p.Service, p.Tier)
	}
	return fmt.Sprintf("service %s: the tier lookup names tier %q, which does not exist; it moves with tier %s", p.Service, p.Names, p.Tier)
}

// Assignment says which Service moves when.
type Assignment struct {
	// Of is the tier of each Service.
	Of map[types.NamespacedName]string
	// Order is all tiers, also those without a Service, the least critical first.
	Order []string
	// Unknown is what was not understood, by Service.
	Unknown []Problem
}

// Questions are Services that no rule names, for the lookup.
func Questions(services []*corev1.Service, rules Rules) []*corev1.Service {
	var out []*corev1.Service
	for _, svc := range services {
		if rules.lookup && rules.ruled(svc) == "" {
			out = append(out, svc)
		}
	}
	return out
}

// Unasked stands for the tier of a Service that only the lookup knows, where that is not asked.
const Unasked = "unknown (lookup not asked)"

// Unasked takes the lookup's part out of an assignment that was made without asking it.
func (a *Assignment) Unasked(questions []*corev1.Service) {
	for _, svc := range questions {
		a.Of[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = Unasked
	}
	a.Order = append(a.Order, Unasked)
	a.Unknown = slices.DeleteFunc(a.Unknown, func(p Problem) bool { return p.Source == SourceLookup })
}

// Assign tiers every Service: by annotation, by name, as the cluster's own, by namespaces and
// selector, by the Questions, else the default. Unknown tiers are reported.
func Assign(services []*corev1.Service, rules Rules, answers map[types.NamespacedName]string) Assignment {
	a := Assignment{Of: make(map[types.NamespacedName]string, len(services)), Order: rules.Names()}
	for _, svc := range services {
		key := types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}
		tier, asked := rules.ruled(svc), ""
		if tier == "" && rules.lookup {
			asked = answers[key]
			if slices.Contains(rules.names, asked) {
				tier = asked
			}
		}
		unanswered := tier == "" && rules.lookup
		if tier == "" {
			tier = rules.other
		}
		a.Of[key] = tier
		if named, ok := svc.Annotations[v1alpha1.AnnotationTier]; ok && !slices.Contains(rules.names, named) {
			a.Unknown = append(a.Unknown, Problem{Service: key, Source: SourceAnnotation, Names: named, Tier: tier})
		}
		if unanswered {
			a.Unknown = append(a.Unknown, Problem{Service: key, Source: SourceLookup, Names: asked, Tier: tier})
		}
	}
	slices.SortStableFunc(a.Unknown, func(x, y Problem) int { return strings.Compare(x.Service.String(), y.Service.String()) })
	return a
}
