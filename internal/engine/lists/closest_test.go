package lists

import "testing"

func TestClosest(t *testing.T) {
	words := []string{"apply", "check", "plan", "pause", "status", "markdown", "yaml", "Stay", "clusterServices"}
	for typed, want := range map[string]string{
		"aply": "apply", "chek": "check", "md": "markdown", "yml": "yaml", "stay": "Stay", "clusterService": "clusterServices",
		"statsu": "status", "get": "", "x": "", "": "", "brigde": "", "é": "",
	} {
		if got := Closest(typed, words); got != want {
			t.Errorf("%q: %q, want %q", typed, got, want)
		}
	}
	if got := Closest("brigde", []string{"bridge", "barrier"}); got != "bridge" {
		t.Errorf("two letters changed places: %q", got)
	}
}
