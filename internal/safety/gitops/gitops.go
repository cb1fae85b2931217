// Package gitops suspends Argo CD and Flux during a freeze, and resumes them exactly.
package gitops

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

const (
	argoGroup      = "argoproj.io"
	kustomizeGroup = "kustomize.toolkit.fluxcd.io"
	helmGroup      = "helm.toolkit.fluxcd.io"
)

type resource struct {
	group, kind, plural string
	// field of the object, and its value when the object is suspended; nil if it is absent then.
	field []string
	off   any
}

// resources are the kinds that a controller reconciles by itself, with their switch.
//
// An Application's automated sync is turned off rather than its AppProject's sync window changed:
// the latter is an entry in a shared list, ends by the clock, and refuses people too, where one
// field can be restored exactly.
func resources() []resource {
	return []resource{
		{argoGroup, "Application", "applications", []string{"spec", "syncPolicy", "automated"}, nil},
		{kustomizeGroup, "Kustomization", "kustomizations", []string{"spec", "suspend"}, true},
		{helmGroup, "HelmRelease", "helmreleases", []string{"spec", "suspend"}, true},
	}
}

func resourceOf(gk schema.GroupKind) (resource, bool) {
	all := resources()
	i := slices.IndexFunc(all, func(r resource) bool { return r.group == gk.Group && r.kind == gk.Kind })
	if i < 0 {
		return resource{}, false
	}
	return all[i], true
}

func (r resource) value(o *unstructured.Unstructured) any {
	v, _, err := unstructured.NestedFieldNoCopy(o.Object, r.field...)
	if err != nil { // something on the way is no map: the field is not there
		return nil
	}
	return v
}

func (r resource) reconciles(o *unstructured.Unstructured) bool {
	v := r.value(o)
	if r.off != nil {
		return v != r.off
	}
	automated, is := v.(map[string]any)
	enabled, said := automated["enabled"].(bool) // from Argo CD 3.1
	return is && (!said || enabled)
}

// reconciles reports whether a controller of Argo CD or Flux reconciles an object by itself.
func reconciles(o *unstructured.Unstructured) bool {
	r, ok := resourceOf(o.GroupVersionKind().GroupKind())
	return ok && r.reconciles(o)
}

// Title is what people call an object, such as "Kustomization flux-system/apps".
func Title(o *unstructured.Unstructured) string {
	return o.GetKind() + " " + o.GetNamespace() + "/" + o.GetName()
}

// SuspendedObject is how an object was before it was suspended.
type SuspendedObject struct {
	Group     string          `json:"group"`
	Kind      string          `json:"kind"`
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       types.UID       `json:"uid"`
	Was       json.RawMessage `json:"was,omitempty"`
}

func (e SuspendedObject) String() string { return e.Kind + " " + e.Namespace + "/" + e.Name }

func (e SuspendedObject) is(o *unstructured.Unstructured) bool {
	gk := o.GroupVersionKind().GroupKind()
	return e.Group == gk.Group && e.Kind == gk.Kind && e.Namespace == o.GetNamespace() && e.Name == o.GetName()
}

func (e SuspendedObject) was() (any, error) {
	if len(e.Was) == 0 {
		return nil, nil
	}
	var v any
	if err := json.Unmarshal(e.Was, &v); err != nil {
		return nil, fmt.Errorf("what is recorded of %s: %w", e, err)
	}
	return v, nil
}

// SuspendRecord is everything that is suspended, or about to be.
type SuspendRecord []SuspendedObject

// With records objects before they are suspended. An earlier record is replaced, since a run may
// have been cut off between record and suspension. Objects that do not reconcile are left out:
// their owner has suspended them.
func (r SuspendRecord) With(objects []*unstructured.Unstructured) (SuspendRecord, error) {
	all := slices.Clone(r)
	for _, o := range objects {
		kind, ok := resourceOf(o.GroupVersionKind().GroupKind())
		if !ok || !kind.reconciles(o) {
			continue
		}
		e := SuspendedObject{Group: kind.group, Kind: kind.kind, Namespace: o.GetNamespace(), Name: o.GetName(), UID: o.GetUID()}
		if v := kind.value(o); v != nil {
			body, err := json.Marshal(v)
			if err != nil {
				return nil, fmt.Errorf("recording %s: %w", e, err)
			}
			e.Was = body
		}
		all = append(slices.DeleteFunc(all, func(have SuspendedObject) bool { return have.is(o) }), e)
	}
	slices.SortFunc(all, func(a, b SuspendedObject) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// Suspended is an object as it is during a freeze; nil if it stays.
func Suspended(o *unstructured.Unstructured, migration string) *unstructured.Unstructured {
	r, ok := resourceOf(o.GroupVersionKind().GroupKind())
	if !ok || !r.reconciles(o) {
		return nil
	}
	out := o.DeepCopy()
	r.set(out, r.off)
	notes := out.GetAnnotations()
	if notes == nil {
		notes = map[string]string{}
	}
	notes[v1alpha1.AnnotationSuspended] = migration
	out.SetAnnotations(notes)
	return out
}

func (r resource) set(o *unstructured.Unstructured, value any) {
	if value == nil {
		unstructured.RemoveNestedField(o.Object, r.field...)
		return
	}
	_ = unstructured.SetNestedField(o.Object, value, r.field...) // where it was read from, and it is made of JSON
}

// Resumed is an object as it was before, or nil if it stays; why is for its owner.
func (e SuspendedObject) Resumed(o *unstructured.Unstructured) (back *unstructured.Unstructured, why string, err error) {
	r, ok := resourceOf(schema.GroupKind{Group: e.Group, Kind: e.Kind})
	if !ok {
		return nil, "", fmt.Errorf("%s is recorded as suspended, and this replumb knows no such kind", e)
	}
	was, err := e.was()
	if err != nil {
		return nil, "", err
	}
	value := r.value(o)
	_, ours := o.GetAnnotations()[v1alpha1.AnnotationSuspended]
	switch {
	case o.GetUID() != e.UID:
		return nil, "it was created again meanwhile", nil
	case !ours && equality.Semantic.DeepEqual(value, was): // it was never suspended, or is resumed already
		return nil, "", nil
	case !ours:
		return nil, "it was changed meanwhile", nil
	}
	back = o.DeepCopy()
	notes := back.GetAnnotations()
	if delete(notes, v1alpha1.AnnotationSuspended); len(notes) == 0 {
		notes = nil // so that the map goes as well, which may not have been there
	}
	back.SetAnnotations(notes)
	if !equality.Semantic.DeepEqual(value, r.off) {
		return back, "it was changed meanwhile", nil
	}
	r.set(back, was)
	return back, "", nil
}

// Reverting are ApplicationSets that would restore their Applications' automated syncs.
func Reverting(applications, sets []*unstructured.Unstructured) []string {
	var all []string
	for _, o := range applications {
		for _, owner := range o.GetOwnerReferences() {
			name := o.GetNamespace() + "/" + owner.Name
			if owner.Kind != "ApplicationSet" || !reconciles(o) || slices.Contains(all, name) {
				continue
			}
			i := slices.IndexFunc(sets, func(s *unstructured.Unstructured) bool {
				return s.GetNamespace() == o.GetNamespace() && s.GetName() == owner.Name
			})
			if i < 0 || !leaves(sets[i]) {
				all = append(all, name)
			}
		}
	}
	slices.Sort(all)
	return all
}

func leaves(set *unstructured.Unstructured) bool {
	if policy, _, _ := unstructured.NestedString(
		set.Object, "spec", "syncPolicy", "applicationsSync",
	); strings.HasPrefix(policy, "create-") &&
		policy != "create-update" {
		return true
	}
	ignored, _, _ := unstructured.NestedSlice(set.Object, "spec", "ignoreApplicationDifferences")
	for _, item := range ignored {
		of, _ := item.(map[string]any)
		pointers, _, _ := unstructured.NestedStringSlice(of, "jsonPointers")
		paths, _, _ := unstructured.NestedStringSlice(of, "jqPathExpressions")
		if of["name"] == nil &&
			(slices.ContainsFunc(pointers, func(p string) bool { return p == "/spec/syncPolicy" || p == "/spec/syncPolicy/automated" }) ||
				slices.ContainsFunc(paths, func(p string) bool { return p == ".spec.syncPolicy" || p == ".spec.syncPolicy.automated" })) {
			return true
		}
	}
	return false
}
