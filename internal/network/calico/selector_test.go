package calico

import "testing"

func TestSelects(t *testing.T) {
	labels := map[string]string{"zone": "a", "kubernetes.io/os": "linux", "empty": ""}
	for selector, want := range map[string]string{
		"":                            "yes",
		"all()":                       "yes",
		"all( )":                      "yes",
		"!all()":                      "no",
		"global()":                    "yes",
		"zone == 'a'":                 "yes",
		`zone=="a"`:                   "yes",
		"zone == 'b'":                 "no",
		"zone != 'a'":                 "no",
		"rack != 'a'":                 "yes",
		"rack == ''":                  "no",
		"empty == ''":                 "yes",
		"has(zone)":                   "yes",
		"has(rack)":                   "no",
		"!has(rack)":                  "yes",
		"zone in {'b', 'a'}":          "yes",
		"zone in {}":                  "no",
		"zone not in {'a'}":           "no",
		"rack not in {'a'}":           "yes",
		"kubernetes.io/os == 'linux'": "yes",
		"kubernetes.io/os starts with 'li' && kubernetes.io/os ends with 'ux'":          "yes",
		"kubernetes.io/os contains 'inu'":                                               "yes",
		"zone == 'b' || has(zone) && has(rack)":                                         "no",
		"(zone == 'b' || has(zone)) && !(has(rack))":                                    "yes",
		"has(node-role.kubernetes.io/control-plane) || kubernetes.io/os in {\"linux\"}": "yes",
		"zone = 'a'":        "error",
		"zone == a":         "error",
		"zone == 'a":        "error",
		"zone ==":           "error",
		"zone":              "error",
		"(all()":            "error",
		"all() has(zone)":   "error",
		"has zone":          "error",
		"zone in 'a'":       "error",
		"zone in {'a' 'b'}": "error",
		"zone not 'a'":      "error",
		"&&":                "error",
		"zone starts 'a'":   "error",
	} {
		yes, err := Selects(selector, labels)
		got := "no"
		switch {
		case err != nil:
			got = "error"
		case yes:
			got = "yes"
		}
		if got != want {
			t.Errorf("%s: got %s (%v), want %s", selector, got, err, want)
		}
	}
}

func FuzzSelects(f *testing.F) {
	f.Add("zone == 'a' && (has(b) || !c in {'d', \"e\"})")
	f.Add("((((((!!!!!'")
	f.Add("a=b&|c")
	f.Fuzz(func(t *testing.T, selector string) {
		yes, err := Selects(selector, map[string]string{"zone": "a"})
		if yes && err != nil {
			t.Errorf("%q selects, and fails: %v", selector, err)
		}
		if err == nil && selector != "" && len(words(selector)) > 0 {
			if not, err := Selects("!("+selector+")", map[string]string{"zone": "a"}); err == nil && not == yes {
				t.Errorf("%q and its opposite are both %v", selector, yes)
			}
		}
	})
}
