package metrics

import (
	"slices"
	"testing"
)

// TestDescriptions: every metric of this package is described, with its labels.
func TestDescriptions(t *testing.T) {
	all, err := Descriptions()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range all {
		names = append(names, d.Name)
		if d.Help == "" || d.Type == "" || len(d.Labels) == 0 {
			t.Errorf("%+v", d)
		}
	}
	for _, name := range exported(t) {
		if !slices.Contains(names, name) {
			t.Errorf("%s is not described", name)
		}
	}
}
