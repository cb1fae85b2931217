// Package fieldmanagers names who writes fields of objects beside replumb, as managedFields record
// it. Managers that only take something away leave no record there.
package fieldmanagers

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Unknown stands for a manager who is not recorded.
const Unknown = "somebody who is not recorded"

// others are the records of managers other than replumb, the latest first.
func others(o metav1.Object) []metav1.ManagedFieldsEntry {
	all := slices.DeleteFunc(slices.Clone(o.GetManagedFields()), func(e metav1.ManagedFieldsEntry) bool {
		return e.Manager == v1alpha1.FieldManager || e.Time == nil
	})
	slices.SortStableFunc(all, func(a, b metav1.ManagedFieldsEntry) int { return b.Time.Compare(a.Time.Time) })
	return all
}

// Last names who wrote an object last, beside replumb, and when.
func Last(o metav1.Object) string {
	all := others(o)
	if len(all) == 0 {
		return Unknown
	}
	return fmt.Sprintf("%s at %s", all[0].Manager, all[0].Time.UTC().Format(time.RFC3339))
}

// Of names those who write a field or what is below it, beside replumb, the latest first.
func Of(o metav1.Object, path ...string) string {
	var names []string
	for _, e := range others(o) {
		if e.Subresource == "" && owns(&e, path) && !slices.Contains(names, e.Manager) {
			names = append(names, e.Manager)
		}
	}
	return cmp.Or(strings.Join(names, ", "), Unknown)
}

func owns(e *metav1.ManagedFieldsEntry, path []string) bool {
	if e.FieldsV1 == nil {
		return false
	}
	raw := e.FieldsV1.GetRawBytes()
	for _, name := range path {
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(raw, &fields); err != nil {
			return false
		}
		inside, is := fields["f:"+name]
		if !is {
			return false
		}
		raw = inside
	}
	return true
}
