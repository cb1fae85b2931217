// Package spec reads Migrations by the CustomResourceDefinition, offline, and by rules that only Go
// can express.
package spec

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine/fault"
)

// longCall is the default limit of calls that make machines, fill volumes or wait for load
// balancers. The schema has one type for all calls.
const longCall = 30 * time.Minute

// Error says which field of a Migration is wrong, and what to do.
type Error struct {
	Field   string
	Problem string
	Hint    string
}

func (e *Error) Error() string  { return e.Field + ": " + e.Problem }
func (e *Error) Advice() string { return e.Hint }
func (*Error) ExitCode() int    { return fault.ExitUsage }

// Invalid is a Migration with more than one thing wrong in it.
type Invalid struct {
	// Of is what is wrong, if it is another than the Migration.
	Of     string
	Errors []*Error
}

// Error has a line for each.
func (e *Invalid) Error() string {
	lines := []string{fmt.Sprintf("the %s has %d errors", cmp.Or(e.Of, "Migration"), len(e.Errors))}
	for _, one := range e.Errors {
		lines = append(lines, "  "+one.Error())
	}
	return strings.Join(lines, "\n")
}

func (e *Invalid) Unwrap() []error {
	var all []error
	for _, one := range e.Errors {
		all = append(all, one)
	}
	return all
}

func (e *Invalid) Advice() string {
	var lines []string
	for _, one := range e.Errors {
		lines = append(lines, one.Field+": "+one.Hint)
	}
	return strings.Join(lines, "\n      ")
}

// ExitCode is that of an invalid command line.
func (*Invalid) ExitCode() int { return 2 }

// As lets errors.As find one *Error that stands for all.
func (e *Invalid) As(target any) bool {
	one, ok := target.(**Error)
	if ok {
		first := *e.Errors[0]
		first.Hint = e.Advice()
		*one = &first
	}
	return ok
}

// Refuse is nil, an *Error or an *Invalid. Each detail is the problem, a semicolon, and what to do
// about it.
func Refuse(all field.ErrorList) error {
	bad := &Invalid{}
	seen := map[string]bool{}
	for _, e := range all {
		problem, hint, _ := strings.Cut(e.Detail, "; ")
		if key := e.Field + problem; !seen[key] {
			seen[key] = true
			bad.Errors = append(bad.Errors, &Error{Field: e.Field, Problem: problem, Hint: hint})
		}
	}
	slices.SortStableFunc(bad.Errors, func(a, b *Error) int { return strings.Compare(a.Field, b.Field) })
	switch len(bad.Errors) {
	case 0:
		return nil
	case 1:
		return bad.Errors[0]
	}
	return bad
}

// Join makes one error of two that Refuse, or Parse, has made. Another error comes before both.
func Join(a, b error) error {
	var bad field.ErrorList
	for _, err := range []error{a, b} {
		var many *Invalid
		var one *Error
		switch {
		case err == nil:
		case errors.As(err, &many):
			for _, e := range many.Errors {
				bad = add(bad, Wrong(e.Field, e.Problem, e.Hint))
			}
		case errors.As(err, &one):
			bad = add(bad, Wrong(one.Field, one.Problem, one.Hint))
		default:
			return err
		}
	}
	return Refuse(bad)
}

// Wrong is something that only Go can see. hint is what to do about it.
func Wrong(path, problem, hint string) *field.Error { return wrong(path, problem+"; "+hint) }

// Wrongf is Wrong with a problem in the format of fmt.
func Wrongf(path, hint, problem string, args ...any) *field.Error {
	return Wrong(path, fmt.Sprintf(problem, args...), hint)
}

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.Migration) {
	object := untyped(m)
	built().complete(object)
	spec, err := typed(object)
	if err != nil {
		return // something in it is wrong, which Validate says
	}
	m.Spec = spec
	defaultNamespaces(m.Spec.Mirror)
	each(reflect.ValueOf(&m.Spec).Elem(), "spec", func(path string, a *v1alpha1.Action) {
		if a.Timeout != nil {
			return
		}
		a.Timeout = &metav1.Duration{Duration: callout.DefaultTimeout}
		if !strings.HasPrefix(path, "spec.hooks") && path != "spec.tierLookup" {
			a.Timeout.Duration = longCall
		}
	})
}

// defaultNamespaces excludes the cluster's and replumb's namespaces from copies, as the schema
// cannot.
func defaultNamespaces(mirror *v1alpha1.MirrorSpec) {
	if mirror == nil || len(mirror.Copy.Namespaces.Include) > 0 {
		return
	}
	exclude := &mirror.Copy.Namespaces.Exclude
	for _, own := range []string{
		metav1.NamespaceSystem, metav1.NamespacePublic, "kube-node-lease", v1alpha1.SystemNamespace, v1alpha1.JournalNamespace,
	} {
		if !slices.Contains(*exclude, own) {
			*exclude = append(*exclude, own)
		}
	}
}

// Validate returns everything wrong in a defaulted Migration, except what its kind knows. phases
// are the names of its plans.
func Validate(m *v1alpha1.Migration, phases []string) field.ErrorList {
	object := untyped(m)
	delete(object, "status") // an API server takes it from elsewhere
	all := built().check(object)
	for _, e := range apivalidation.ValidateObjectMeta(&m.ObjectMeta, false, anyName, field.NewPath("metadata")) {
		if e.Field != "metadata.name" { // the schema has a stricter rule
			all = append(all, Wrong(e.Field, e.Detail, "see https://kubernetes.io/docs/concepts/overview/working-with-objects/"))
		}
	}
	all = append(all, validateTiers(&m.Spec)...)
	all = append(all, validateWindows(m.Spec.Windows)...)
	all = append(all, validateProbes(&m.Spec.Proof)...)
	all = append(all, validateBridgeLabels(m.Spec.ServiceCIDR)...)
	return append(all, validateHooks(&m.Spec, phases)...)
}

func anyName(string, bool) []string { return nil }
