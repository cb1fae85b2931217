package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/replumb/replumb/hack/manual/page"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations"
)

// schema is a part of a definition.
type schema = apiextensionsv1.JSONSchemaProps

// api is the page of all fields of a Migration: a section for what all kinds have, one for each kind, and one for the status.
func api(string) (string, error) {
	crd, err := cluster.Migration.CRD()
	if err != nil {
		return "", err
	}
	version := crd.Spec.Versions[0]
	whole := version.Schema.OpenAPIV3Schema
	spec := whole.Properties["spec"]
	var b strings.Builder
	fmt.Fprintf(&b, "# Fields of a Migration\n\n`apiVersion: %s/%s`, `kind: %s`, not in a namespace. %s `[]` stands for each "+
		"entry of a list, `.*` for each key of a map. A field may be left out unless it is required. What depends on several "+
		"fields, `replumb check -f FILE` and the API server say.\n",
		crd.Spec.Group, version.Name, crd.Spec.Names.Kind, generated)
	common := spec.DeepCopy()
	for _, kind := range migrations.All() {
		job := common.Properties[kind.Field]
		job.Properties = nil // they have a section of their own
		common.Properties[kind.Field] = job
	}
	section(&b, "What all kinds have", "spec", *common)
	for _, kind := range migrations.All() {
		job := spec.Properties[kind.Field]
		section(&b, "spec."+kind.Field, "spec."+kind.Field, job)
	}
	fmt.Fprintf(&b, "\n## Calls\n\nFields of all calls of something outside ([hooks](hooks.md) and actions). CALL is the field whose type is call, "+
		"or that has one in it.\n%s", heads)
	for _, name := range parts() {
		row(&b, "CALL."+name, spec.Properties["tierLookup"].Properties[name], false)
	}
	section(&b, "status", "status", whole.Properties["status"])
	return b.String(), nil
}

// heads are those of every table.
const heads = "\n| field | type | default | allowed | description |\n|---|---|---|---|---|\n"

// parts are the fields of a call, which have a section of their own.
func parts() []string { return []string{"exec", "http", "timeout"} }

// calls reports whether a part of the schema is a call, or has one in it.
func calls(s schema) bool {
	return !slices.ContainsFunc(parts(), func(name string) bool { _, has := s.Properties[name]; return !has })
}

// section is a heading, what the part of the schema says of itself, and a table of its fields.
func section(b *strings.Builder, title, path string, s schema) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n%s", title, s.Description, heads)
	fields(b, path, s)
}

// fields are the rows of what is in a part of the schema, each before what is in it.
func fields(b *strings.Builder, path string, s schema) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		of := s.Properties[name]
		if calls(s) && slices.Contains(parts(), name) {
			continue
		}
		row(b, path+"."+name, of, slices.Contains(s.Required, name))
	}
}

func row(b *strings.Builder, path string, s schema, required bool) {
	kind := typeOf(s)
	if required {
		kind += ", required"
	}
	fmt.Fprintf(b, "| `%s` | %s | %s | %s | %s |\n", path, kind, page.Code(literal(s.Default)), allowed(s), page.Cell(s.Description))
	under, inner := path, s
	for { // lists of lists, and maps of lists
		if inner.Items != nil && inner.Items.Schema != nil {
			under, inner = under+"[]", *inner.Items.Schema
			continue
		}
		if inner.AdditionalProperties != nil && inner.AdditionalProperties.Schema != nil {
			under, inner = under+".*", *inner.AdditionalProperties.Schema
			continue
		}
		break
	}
	fields(b, under, inner)
}

// typeOf is the type of a field, of a list with that of its entries.
func typeOf(s schema) string {
	switch {
	case calls(s) && len(s.Properties) == len(parts()):
		return "[call](#calls)"
	case calls(s):
		return "object with a [call](#calls)"
	case s.XIntOrString:
		return "integer or string"
	case s.Items != nil && s.Items.Schema != nil:
		return "list of " + typeOf(*s.Items.Schema)
	case s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil:
		return "map of " + typeOf(*s.AdditionalProperties.Schema)
	}
	return s.Type
}

// literal is a value without the quotation marks that a string has in JSON.
func literal(v *apiextensionsv1.JSON) string {
	if v == nil {
		return ""
	}
	var text string
	if json.Unmarshal(v.Raw, &text) == nil {
		return text
	}
	return string(v.Raw)
}

// allowed says which values a field may have, as far as the schema does without its rules: those say what to do when they refuse one.
func allowed(s schema) string {
	var all []string
	values := s
	if s.Items != nil && s.Items.Schema != nil {
		values = *s.Items.Schema
	}
	for i := range values.Enum {
		all = append(all, page.Code(literal(&values.Enum[i])))
	}
	all = append(all, limits(s)...)
	if values.Format != "" {
		all = append(all, values.Format)
	}
	if values.Pattern != "" {
		all = append(all, "pattern "+page.Code(values.Pattern))
	}
	return strings.Join(all, ", ")
}

// limits are those of a number, of a list, and of a text.
func limits(s schema) []string {
	var all []string
	number := func(format string, n *float64) {
		if n != nil {
			all = append(all, fmt.Sprintf(format, int64(*n)))
		}
	}
	count := func(format string, n *int64) {
		if n != nil {
			all = append(all, fmt.Sprintf(format, *n))
		}
	}
	number("at least %d", s.Minimum)
	number("at most %d", s.Maximum)
	count("%d or more entries", s.MinItems)
	count("up to %d entries", s.MaxItems)
	count("%d or more characters", s.MinLength)
	count("up to %d characters", s.MaxLength)
	return all
}
