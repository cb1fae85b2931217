package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
)

// howTo says how a field is written, and what it is when it is left out.
func howTo(path string, node *schema.Structural, value any) string {
	text := written(path, node, value)
	if def := node.Default.Object; def != nil && len(node.Properties) == 0 {
		text += fmt.Sprintf(", or leave it out for %v", def)
	}
	return text
}

// within says what to do about a number out of its bounds, which were told.
func within(node *schema.Structural) string {
	if def := node.Default.Object; def != nil {
		return fmt.Sprintf("leave it out for %v", def)
	}
	return "write a number within them"
}

func written(path string, node *schema.Structural, value any) string {
	all := steps(path)
	name := all[len(all)-1]
	switch {
	case isDuration(node):
		return "write a duration such as 60s"
	case len(choices(node)) > 0:
		return "use one of " + strings.Join(choices(node), ", ")
	case node.ValueValidation != nil && inPatterns(node.ValueValidation.Pattern) != "":
		return inPatterns(node.ValueValidation.Pattern)
	}
	switch node.Type {
	case "array":
		return "write a list: " + name + ": [" + element(value) + "]"
	case "object":
		return fieldsOf(node)
	case "integer":
		return "write a whole number"
	case "boolean":
		return "write true or false"
	}
	return "write a text"
}

// element is what a list would have in it that was written as one value.
func element(value any) string {
	switch value.(type) {
	case string, int64, float64, bool:
		return fmt.Sprint(value)
	}
	return "..."
}

// fieldsOf are those of an object, or the ones that exclude each other.
func fieldsOf(node *schema.Structural) string {
	for _, rule := range node.XValidations {
		if m := oneOfFields.FindStringSubmatch(rule.Message); m != nil {
			return "name one of " + strings.Join(strings.Fields(m[2]), ", ")
		}
	}
	if len(node.Properties) == 0 {
		return "write names and values: {name: value}"
	}
	return "write its fields: " + strings.Join(slices.Sorted(maps.Keys(node.Properties)), ", ")
}

// inPatterns says what a pattern of the schema takes; empty for one that it has no words for.
func inPatterns(pattern string) string {
	return map[string]string{
		`^[A-Za-z_][A-Za-z0-9_]*$`:             "use letters, digits and underscores, as names of environment variables have",
		`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`: "use lower-case letters, digits and dashes, 63 at most",
		`^([01][0-9]|2[0-3]):[0-5][0-9]$`:      "write HH:MM, such as 06:00",
		`^[A-Z0-9]{1,32}$`:                     "write the ID of a hosted zone, such as Z0123456789ABC",
		`^/`:                                   "begin it with /, such as /registry",
		`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?/[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`: "write namespace/name, such as shop/cart",
		`^[a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?(:[0-9]{1,5})?$`:                 "write a host or host:port, such as shop.example",
		`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`:       "write a domain such as cluster.local",
		`^([a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?\.)+[a-zA-Z0-9_]([-a-zA-Z0-9_]{0,61}[a-zA-Z0-9_])?\.?$`: "" +
			"write a name in DNS, such as api.example.com",
	}[pattern]
}
