package offline

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

type object struct {
	namespace, name string
	labels          labels.Set
	body            json.RawMessage

	mu sync.Mutex
	// values of fields that were asked for, by their paths.
	values map[string]string
}

func newObject(body json.RawMessage) (*object, error) {
	var o struct {
		Metadata struct {
			Namespace string            `json:"namespace"`
			Name      string            `json:"name"`
			Labels    map[string]string `json:"labels"`
		} `json:"metadata"`
	}
	if err := json.Unmarshal(body, &o); err != nil {
		return nil, err
	}
	m := o.Metadata
	if m.Name == "" {
		return nil, errors.New("an object has no name")
	}
	return &object{namespace: m.Namespace, name: m.Name, labels: m.Labels, body: body}, nil
}

// value is that of a field as selectors compare it: an absent one is empty, or false where it says
// yes or no.
func (o *object) value(path string) string {
	switch path {
	case "metadata.name":
		return o.name
	case "metadata.namespace":
		return o.namespace
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if v, known := o.values[path]; known {
		return v
	}
	if o.values == nil {
		o.values = map[string]string{}
	}
	o.values[path] = fieldOf(o.body, path)
	return o.values[path]
}

func fieldOf(body json.RawMessage, path string) string {
	var at any
	if err := json.Unmarshal(body, &at); err != nil {
		return ""
	}
	for part := range strings.SplitSeq(path, ".") {
		within, _ := at.(map[string]any)
		at = within[part]
	}
	if at == nil && (path == "spec.unschedulable" || path == "spec.hostNetwork") {
		return "false"
	}
	if at == nil {
		return ""
	}
	return fmt.Sprint(at)
}

// selected reports whether selectors choose an object; nil ones choose all.
func (o *object) selected(l labels.Selector, f fields.Selector) bool {
	if l != nil && !l.Matches(o.labels) {
		return false
	}
	if f == nil {
		return true
	}
	for _, r := range f.Requirements() {
		if (o.value(r.Field) == r.Value) != (r.Operator != "!=") {
			return false
		}
	}
	return true
}

type collection struct {
	kind    string
	objects []*object
	// refused is what the API server answered instead.
	refused *answer
}

// scope is what a collection is of: all namespaces, or one; or one object alone.
type scope struct {
	of              schema.GroupVersionResource
	namespace, name string
}

type objects struct {
	by map[scope]*collection
}

func newObjects() objects { return objects{by: map[scope]*collection{}} }

func (o objects) take(p *page) error {
	if p.Version == "" || p.Resource == "" {
		return errors.New("it is of no resource")
	}
	at := scope{of: p.gvr(), namespace: p.Namespace, name: p.Name}
	c := o.by[at]
	if c == nil {
		c = &collection{}
		o.by[at] = c
	}
	c.kind = cmp.Or(p.Kind, c.kind)
	if p.Refused != nil {
		c.refused = &answer{Code: p.Code, Body: string(p.Refused)}
	}
	for _, body := range p.Items {
		one, err := newObject(body)
		if err != nil {
			return err
		}
		c.objects = append(c.objects, one)
	}
	return nil
}

// sort has objects in the order in which API servers list them.
func (o objects) sort() {
	for _, c := range o.by {
		slices.SortStableFunc(c.objects, func(a, b *object) int {
			return cmp.Or(strings.Compare(a.namespace, b.namespace), strings.Compare(a.name, b.name))
		})
	}
}

// counts are the numbers of objects by resource: those of the version that has most.
func (o objects) counts() map[string]int {
	all := map[string]int{}
	seen := map[schema.GroupVersionResource]int{}
	for at, c := range o.by {
		seen[at.of] += len(c.objects)
	}
	for of, count := range seen {
		if name := resourceName(of.Group, of.Resource); count > all[name] {
			all[name] = count
		}
	}
	return all
}

// list is the collection of a resource, in one namespace or in all; nil, if the archive has none.
func (o objects) list(of schema.GroupVersionResource, namespace string) *collection {
	all := o.by[scope{of: of}]
	if namespace == "" || all != nil && all.refused == nil {
		return within(all, namespace)
	}
	if c := o.by[scope{of: of, namespace: namespace}]; c != nil {
		return c
	}
	return all
}

// within is the part of a collection that is in a namespace.
func within(c *collection, namespace string) *collection {
	if c == nil || namespace == "" {
		return c
	}
	part := &collection{kind: c.kind, refused: c.refused}
	for _, one := range c.objects {
		if one.namespace == namespace {
			part.objects = append(part.objects, one)
		}
	}
	return part
}

func (o objects) get(of schema.GroupVersionResource, namespace, name string) (one *object, kind string, refused *answer, known bool) {
	found := func(c *collection) bool {
		if c == nil {
			return false
		}
		known = true
		if refused == nil {
			refused = c.refused
		}
		at, there := slices.BinarySearchFunc(c.objects, name, func(e *object, _ string) int {
			return cmp.Or(strings.Compare(e.namespace, namespace), strings.Compare(e.name, name))
		})
		if there {
			one, kind, refused = c.objects[at], c.kind, nil
		}
		return there || c.refused == nil
	}
	if found(o.by[scope{of: of, namespace: namespace, name: name}]) {
		return one, kind, refused, known
	}
	refused = nil
	if found(o.by[scope{of: of}]) {
		return one, kind, nil, known
	}
	if namespace != "" && found(o.by[scope{of: of, namespace: namespace}]) {
		return one, kind, nil, known
	}
	return nil, "", refused, known
}
