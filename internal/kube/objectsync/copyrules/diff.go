package copyrules

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Difference is one field in which a copy is not what the rules make of the source's object.
type Difference struct {
	Ref  objects.Ref
	Path string
	// Want is the value by the rules, Have the target's, as JSON; not for Secrets.
	Want, Have string
}

func (d Difference) String() string {
	if d.Path == "" {
		return fmt.Sprintf("%s: is %s in the target, and should be %s", d.Ref, d.Have, d.Want)
	}
	return fmt.Sprintf("%s: %s is %s, and should be %s", d.Ref, d.Path, d.Have, d.Want)
}

// What Want and Have say of fields and objects.
const (
	Absent  = "absent"
	Present = "present"
	hidden  = "(not shown)"
)

// Differences are the fields in which an object of the target is not the wanted copy, both ways.
func (r *Rules) Differences(k objects.ResourceKind, want, have *unstructured.Unstructured) []Difference {
	d := differ{ref: objects.RefOf(k, want), secret: k.IsSecret()}
	d.compare("", r.comparable(k, want).Object, r.comparable(k, have).Object)
	return d.found
}

// comparable is what is left of an object when everything is gone that one cluster owns.
func (r *Rules) comparable(k objects.ResourceKind, o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	o.SetAPIVersion(k.GVR().GroupVersion().String())
	o.SetKind(k.Kind)
	r.strip(k, o)
	if s := r.SleepOf(k, o); s != nil {
		objects.Drop(o, "spec", s.field)
		annotations := o.GetAnnotations()
		delete(annotations, s.annotation)
		objects.SetOrDrop(o, "annotations", annotations)
	}
	return o
}

type differ struct {
	ref    objects.Ref
	secret bool
	found  []Difference
}

func (d *differ) compare(path string, want, have any) {
	if w, ok := want.(map[string]any); ok {
		if h, ok := have.(map[string]any); ok {
			d.maps(path, w, h)
			return
		}
	}
	if w, ok := want.([]any); ok {
		if h, ok := have.([]any); ok && len(w) == len(h) {
			for i := range w {
				d.compare(fmt.Sprintf("%s[%d]", path, i), w[i], h[i])
			}
			return
		}
	}
	if !equal(want, have) {
		d.add(path, want, have)
	}
}

func (d *differ) maps(path string, want, have map[string]any) {
	names := map[string]bool{}
	for name := range want {
		names[name] = true
	}
	for name := range have {
		names[name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(names)) {
		w, h := want[name], have[name]
		if empty(w) && empty(h) {
			continue // API servers do not keep the difference
		}
		d.compare(path+field(name), w, h)
	}
}

// field is a step of a path. Names with dots are quoted.
func field(name string) string {
	if regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_-]*$`).MatchString(name) {
		return "." + name
	}
	return fmt.Sprintf("[%q]", name)
}

func empty(v any) bool {
	switch v := v.(type) {
	case nil:
		return true
	case map[string]any:
		return len(v) == 0
	case []any:
		return len(v) == 0
	}
	return false
}

// equal takes numbers for the same that are read as different types.
func equal(want, have any) bool {
	if reflect.DeepEqual(want, have) {
		return true
	}
	w, wok := number(want)
	h, hok := number(have)
	return wok && hok && w == h
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, true
	}
	return 0, false
}

func (d *differ) add(path string, want, have any) {
	diff := Difference{Ref: d.ref, Path: path, Want: shown(want), Have: shown(have)}
	if d.secret && !regexp.MustCompile(`^\.(metadata|type|immutable|kind|apiVersion)`).MatchString(path) {
		diff.Want, diff.Have = concealed(want), concealed(have)
	}
	d.found = append(d.found, diff)
}

func concealed(v any) string {
	if v == nil {
		return Absent
	}
	return hidden
}

// shown is a value as JSON, cut where no one reads on.
func shown(v any) string {
	if v == nil {
		return Absent
	}
	const longest = 200
	body, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	if runes := []rune(string(body)); len(runes) > longest {
		return string(runes[:longest]) + "..."
	}
	return string(body)
}
