package spec

import (
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// TestPatternsHaveWords: what is written otherwise than a pattern has it is told how to be written,
// and not what the pattern is.
func TestPatternsHaveWords(t *testing.T) {
	all := 0
	var walk func(path string, node schema.Structural)
	walk = func(path string, node schema.Structural) {
		if v := node.ValueValidation; v != nil && v.Pattern != "" {
			if all++; inPatterns(v.Pattern) == "" {
				t.Errorf("%s: no words for %s", path, v.Pattern)
			}
		}
		for name, child := range node.Properties {
			walk(path+"."+name, child)
		}
		if node.Items != nil {
			walk(path+"[]", *node.Items)
		}
	}
	walk("spec", built().schema.Properties["spec"])
	if all == 0 {
		t.Error("no field has a pattern")
	}
}

// TestSlips are the commonest mistakes in a file. What is said of them is neither a rule nor a
// pattern of the schema, nor what its fields are described by.
func TestSlips(t *testing.T) {
	const head = "apiVersion: replumb.dev/v1alpha1\nkind: Migration\n"
	named := func(spec string) string { return head + "metadata: {name: m}\nspec: {" + spec + "}\n" }
	with := func(more string) string { return named("serviceCIDR: {to: [172.24.0.0/16]}, " + more) }
	for name, tt := range map[string]struct{ file, want, hint string }{
		"no metadata": {
			head + "spec: {serviceCIDR: {to: [172.24.0.0/16]}}", "metadata.name: is missing",
			"name the Migration with lower-case letters, digits and dashes, at most 63",
		},
		"no spec": {
			head + "metadata: {name: m}", "spec: is missing", "name one of serviceCIDR, podCIDR, nodes, mirror, cni",
		},
		"one value for a list": {
			named("serviceCIDR: {to: 172.24.0.0/16}"), "spec.serviceCIDR.to: takes no string", "write a list: to: [172.24.0.0/16]",
		},
		"a name in capitals": {
			with("tiers: [{name: A}]"), `spec.tiers[0].name: "A" cannot be used`, "use lower-case letters, digits and dashes, 63 at most",
		},
		"no time": {
			with(`windows: [{start: "04:00", end: "6"}]`), `spec.windows[0].end: "6" cannot be used`, "write HH:MM, such as 06:00",
		},
		"an end without a beginning": {
			with(`windows: [{end: "06:00"}]`), "spec.windows[0].start: is missing", "write HH:MM, such as 06:00",
		},
		"a field misspelled": {
			named("serviceCIDR: {to: [172.24.0.0/16], clusterService: Stay}"),
			`spec.serviceCIDR.clusterService: unknown field "spec.serviceCIDR.clusterService"`, "did you mean clusterServices?",
		},
		"an image of earlier versions": {
			with("proof: {image: i}"), "spec.proof.image: is no field any more", "write spec.image, which is for all pods of replumb",
		},
		"pull secrets of canaries": {
			named("podCIDR: {to: [10.245.0.0/16], canary: {imagePullSecrets: [a]}}"),
			"spec.podCIDR.canary.imagePullSecrets: is no field any more", "write spec.imagePullSecrets, which is for all pods of replumb",
		},
		"a value in lower case": {
			named("serviceCIDR: {to: [172.24.0.0/16], clusterServices: stay}"),
			`spec.serviceCIDR.clusterServices: "stay" is not known`, "did you mean Stay? use one of Move, Stay",
		},
		"text for a number": {with("batch: {size: ten}"), "spec.batch.size: takes no string", "write a whole number, or leave it out for 10"},
		"broken YAML": {
			"# a comment\n---\n" + head + "metadata: {name: m}\nspec: {serviceCIDR: {to: [172.24.0.0/16]", "m.yaml:6: did not find expected ',' or '}'", "write a Migration in YAML or JSON",
		},
	} {
		_, err := Read(Source{Name: "m.yaml", Body: []byte(tt.file)})
		advised, is := err.(interface{ Advice() string })
		if !is || err.Error() != tt.want || !strings.HasPrefix(advised.Advice(), tt.hint) {
			t.Errorf("%s: %v\nwant %s\nhint: %s", name, err, tt.want, tt.hint)
			if is {
				t.Log(advised.Advice())
			}
		}
	}
}
