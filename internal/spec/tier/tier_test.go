package tier

import (
	"reflect"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

func service(key string, change ...func(*corev1.Service)) *corev1.Service {
	namespace, name, _ := strings.Cut(key, "/")
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{},
	}}
	for _, c := range change {
		c(svc)
	}
	return svc
}

func label(k, v string) func(*corev1.Service) { return func(s *corev1.Service) { s.Labels[k] = v } }

func annotation(k, v string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[k] = v }
}

func annotated(tier string) func(*corev1.Service) { return annotation(v1alpha1.AnnotationTier, tier) }

func own(s *corev1.Service) bool { return s.Namespace == "kube-system" || s.Name == "kubernetes" }

func key(text string) types.NamespacedName {
	namespace, name, _ := strings.Cut(text, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// tiers is a spec with each kind of rule.
func tiers() *v1alpha1.MigrationSpec {
	return &v1alpha1.MigrationSpec{Tiers: []v1alpha1.TierSpec{
		{Name: "test", Namespaces: []string{"test", "kube-system"}, Services: []string{"shop/beta"}},
		{
			Name:     "web",
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "web"}},
			Services: []string{"kube-system/metrics"},
		},
		{Name: "pay", Namespaces: []string{"pay"}, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"kind": "api"}}},
		{Name: "core"},
	}}
}

func TestAssign(t *testing.T) {
	for _, tt := range []struct {
		name    string
		svc     *corev1.Service
		spec    func(*v1alpha1.MigrationSpec)
		answer  string
		want    string
		unknown []Problem
	}{
		{name: "namespace", svc: service("test/a"), want: "test"},
		{name: "selector", svc: service("shop/a", label("kind", "web")), want: "web"},
		{name: "the first that matches", svc: service("test/a", label("kind", "web")), want: "test"},
		{name: "both namespace and selector", svc: service("pay/a", label("kind", "api")), want: "pay"},
		{name: "only the namespace of both", svc: service("pay/a"), want: "core"},
		{name: "only the selector of both", svc: service("shop/a", label("kind", "api")), want: "core"},
		{name: "by name before the rest", svc: service("shop/beta", label("kind", "web")), want: "test"},
		{name: "annotation before name", svc: service("shop/beta", annotated("pay")), want: "pay"},
		{name: "no rule, the last tier", svc: service("shop/a"), want: "core"},
		{
			name: "no rule, the default tier", svc: service("shop/a"), want: "web",
			spec: func(s *v1alpha1.MigrationSpec) { s.DefaultTier = "web" },
		},
		{name: "no tiers", svc: service("shop/a"), want: "default", spec: func(s *v1alpha1.MigrationSpec) { s.Tiers = nil }},
		{name: "no tiers, own", svc: service("kube-system/dns"), want: "cluster-services", spec: func(s *v1alpha1.MigrationSpec) { s.Tiers = nil }},
		{name: "own, although its namespace is named", svc: service("kube-system/dns"), want: "cluster-services"},
		{name: "own, although the selector matches", svc: service("default/kubernetes", label("kind", "web")), want: "cluster-services"},
		{name: "own, named", svc: service("kube-system/metrics"), want: "web"},
		{name: "own, annotated", svc: service("kube-system/dns", annotated("core")), want: "core"},
		{name: "annotated as own", svc: service("shop/dns", annotated("cluster-services")), want: "cluster-services"},
		{
			name: "annotation names no tier", svc: service("shop/beta", annotated("gold")), want: "test",
			unknown: []Problem{{Service: key("shop/beta"), Source: SourceAnnotation, Names: "gold", Tier: "test"}},
		},
		{
			name: "own, annotation names no tier", svc: service("kube-system/dns", annotated("")), want: "cluster-services",
			unknown: []Problem{{Service: key("kube-system/dns"), Source: SourceAnnotation, Tier: "cluster-services"}},
		},
		{name: "lookup", svc: service("shop/a"), spec: lookup, answer: "web", want: "web"},
		{name: "lookup is not asked when a rule matches", svc: service("test/a"), spec: lookup, answer: "web", want: "test"},
		{name: "no lookup, no answer", svc: service("shop/a"), answer: "web", want: "core"},
		{
			name: "lookup does not know it", svc: service("shop/a"), spec: lookup, want: "core",
			unknown: []Problem{{Service: key("shop/a"), Source: SourceLookup, Tier: "core"}},
		},
		{
			name: "lookup names no tier", svc: service("shop/a"), spec: lookup, answer: "gold", want: "core",
			unknown: []Problem{{Service: key("shop/a"), Source: SourceLookup, Names: "gold", Tier: "core"}},
		},
		{
			name: "both wrong", svc: service("shop/a", annotated("x")), spec: lookup, answer: "y", want: "core",
			unknown: []Problem{
				{Service: key("shop/a"), Source: SourceAnnotation, Names: "x", Tier: "core"},
				{Service: key("shop/a"), Source: SourceLookup, Names: "y", Tier: "core"},
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			spec := tiers()
			if tt.spec != nil {
				tt.spec(spec)
			}
			rules, err := NewRules(spec, own)
			if err != nil {
				t.Fatal(err)
			}
			answers := map[types.NamespacedName]string{}
			if tt.answer != "" {
				answers[key(tt.svc.Namespace+"/"+tt.svc.Name)] = tt.answer
			}
			got := Assign([]*corev1.Service{tt.svc}, rules, answers)
			if tier := got.Of[key(tt.svc.Namespace+"/"+tt.svc.Name)]; tier != tt.want {
				t.Errorf("tier %q, want %q", tier, tt.want)
			}
			if !reflect.DeepEqual(got.Unknown, tt.unknown) {
				t.Errorf("unknown %v, want %v", got.Unknown, tt.unknown)
			}
			if last := got.Order[len(got.Order)-1]; last != ClusterServices || len(got.Order) != max(1, len(spec.Tiers))+1 {
				t.Errorf("order %v", got.Order)
			}
		})
	}
}

func lookup(s *v1alpha1.MigrationSpec) { s.TierLookup = &v1alpha1.TierLookup{} }

func TestQuestionsAreWhatNoRuleNames(t *testing.T) {
	services := []*corev1.Service{
		service(
			"test/a",
		),
		service("shop/a"),
		service("kube-system/dns"),
		service("shop/b", annotated("web")),
		service("shop/c", annotated("x")),
	}
	spec := tiers()
	for _, want := range [][]string{nil, {"shop/a", "shop/c"}} {
		rules, err := NewRules(spec, own)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, svc := range Questions(services, rules) {
			got = append(got, svc.Namespace+"/"+svc.Name)
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		lookup(spec)
	}
}

func TestNewRulesRefusesWhatCannotBe(t *testing.T) {
	for _, spec := range []*v1alpha1.MigrationSpec{
		{DefaultTier: "gold"},
		{Tiers: []v1alpha1.TierSpec{{Name: "a"}}, DefaultTier: "default"},
		{Tiers: []v1alpha1.TierSpec{{Name: "a", Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"?": "x"}}}}},
	} {
		if _, err := NewRules(spec, nil); err == nil {
			t.Errorf("accepted %+v", spec)
		}
	}
}

func TestProblemsSayWhatIsWrong(t *testing.T) {
	for want, p := range map[string]Problem{
		`service shop/a: its annotation replumb.dev/tier names tier "x", which does not exist; it moves with tier core`: {
			Service: key("shop/a"), Source: SourceAnnotation, Names: "x", Tier: "core",
		},
		"service shop/a: the tier lookup does not know it; it moves with tier core": {Service: key("shop/a"), Source: SourceLookup, Tier: "core"},
		`service shop/a: the tier lookup names tier "x", which does not exist; it moves with tier core`: {
			Service: key("shop/a"), Source: SourceLookup, Names: "x", Tier: "core",
		},
	} {
		if got := p.String(); got != want {
			t.Errorf("got %s\nwant %s", got, want)
		}
	}
}
