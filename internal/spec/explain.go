package spec

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/replumb/replumb/internal/engine/lists"
)

const (
	// evaluation is what errors of rules have in them that could not be evaluated, and begins the
	// detail of one that is dropped if there is another.
	evaluation = " evaluating rule: "
	missing    = "is missing; "
	// ofSchema is in errors of the schema's values, unlike those of its rules.
	ofSchema = " in body "
	// somewhere is the hint where the schema has no better one.
	somewhere = "the folder examples has a file for each kind of migration"
)

// at is a field's schema and value; nil if there is none.
func (d *definition) at(object any, path string) (node *schema.Structural, value any) {
	node, value = d.schema, object
	for _, step := range steps(path) {
		if node == nil {
			return nil, nil
		}
		if i, err := strconv.Atoi(step); err == nil && node.Items != nil {
			node = node.Items
			list, _ := value.([]any)
			if value = nil; i < len(list) {
				value = list[i]
			}
			continue
		}
		child, ok := node.Properties[step]
		if node = nil; ok {
			node = &child
		}
		fields, _ := value.(map[string]any)
		value = fields[step]
	}
	return node, value
}

func steps(path string) []string {
	return strings.FieldsFunc(path, func(r rune) bool { return r == '.' || r == '[' || r == ']' })
}

// explain writes an error as: the problem, a semicolon, and what to do about it.
func (d *definition) explain(object map[string]any, e *field.Error) *field.Error {
	path := strings.ReplaceAll(e.Field, "..", ".")
	if path == "" || path == "<nil>" { // the only rule about all of it is that of its name
		_, advice, _ := strings.Cut(e.Detail, "; ")
		if strings.Contains(e.Detail, evaluation) {
			return wrong("metadata.name", missing+advice)
		}
		return wrong("metadata.name", strings.TrimPrefix(e.Detail, "metadata.name "))
	}
	node, value := d.at(object, path)
	switch {
	case node == nil:
		return wrong(path, e.Detail+"; "+somewhere)
	case e.Type == field.ErrorTypeRequired:
		return wrong(path, missing+howTo(path, node, value))
	case e.Type == field.ErrorTypeDuplicate:
		return duplicate(path, e.BadValue)
	case e.Type == field.ErrorTypeNotSupported:
		return wrong(path, notOneOf(value, choices(node)))
	case e.Type == field.ErrorTypeTypeInvalid:
		return wrong(path, wrongType(path, node, value))
	case e.Type != field.ErrorTypeInvalid:
		return wrong(path, e.Detail+"; "+howTo(path, node, value))
	case strings.Contains(e.Detail, ofSchema):
		return wrong(path, outOfBounds(path, node, value))
	case strings.Contains(e.Detail, evaluation) && isDuration(node):
		return wrong(path, fmt.Sprintf("%v is not a duration; write it such as 30s, 10m or 1h30m", quoted(value)))
	case strings.Contains(e.Detail, evaluation):
		return wrong(path, evaluation+howTo(path, node, value))
	}
	return wrong(path, inWords(path, value, e.Detail))
}

func duplicate(path string, value any) *field.Error {
	keys, _ := value.(map[string]any)
	for key, name := range keys { // there is one
		path, value = path+"."+key, name
	}
	return wrong(path, quoted(value)+" is there twice; give each its own name")
}

func wrong(path, detail string) *field.Error {
	return &field.Error{Type: field.ErrorTypeInvalid, Field: path, BadValue: field.OmitValueType{}, Detail: detail}
}

var oneOfFields = regexp.MustCompile(`^(exactly|at most) one of the fields in \[(.*)\] (must|may) be set`)

func inWords(path string, value any, message string) string {
	if m := oneOfFields.FindStringSubmatch(message); m != nil {
		fields := strings.Fields(m[2])
		last := len(fields) - 1
		list := strings.Join(fields[:last], ", ") + " and " + fields[last]
		return fmt.Sprintf("needs %s one of %s; set one of them, and no other", m[1], list)
	}
	text, ok := value.(string)
	if !ok || isSecret(path) || text == "" || !strings.HasPrefix(message, "is ") {
		return message
	}
	if p, err := netip.ParsePrefix(text); err == nil {
		switch {
		case p != p.Masked():
			return fmt.Sprintf("range %s has host bits set; did you mean %s?", p, p.Masked())
		case p.String() != text:
			return fmt.Sprintf("range %s is not in canonical form; write %s", text, p)
		}
	}
	return quoted(text) + " " + message
}

// isSecret reports whether a field may hold a URL with a secret, which is never quoted.
func isSecret(path string) bool {
	return strings.HasSuffix(path, ".url") || strings.HasSuffix(path, ".urlFromEnv") || strings.HasSuffix(path, ".address")
}

func quoted(value any) string {
	body, err := json.Marshal(value)
	if err != nil {
		return fmt.Sprint(value)
	}
	return string(body)
}

func choices(node *schema.Structural) (all []string) {
	if node.ValueValidation == nil {
		return nil
	}
	for _, v := range node.ValueValidation.Enum {
		all = append(all, fmt.Sprint(v.Object))
	}
	return all
}

func notOneOf(value any, all []string) string {
	advice := "use one of " + strings.Join(all, ", ")
	if meant := lists.Closest(fmt.Sprint(value), all); meant != "" {
		advice = "did you mean " + meant + "? " + advice
	}
	return quoted(value) + " is not known; " + advice
}

func outOfBounds(path string, node *schema.Structural, value any) string {
	bounds := node.ValueValidation
	switch {
	case bounds == nil:
		return "cannot be used; " + howTo(path, node, value)
	case bounds.Minimum != nil && bounds.Maximum != nil:
		return fmt.Sprintf("%v is not within %v and %v; %s", value, *bounds.Minimum, int64(*bounds.Maximum), within(node))
	case bounds.Minimum != nil:
		return fmt.Sprintf("%v is less than %v; %s", value, *bounds.Minimum, within(node))
	case bounds.MinItems != nil || bounds.MinLength != nil && value == "":
		return "is empty; " + howTo(path, node, value)
	case bounds.Pattern != "" && !isSecret(path):
		return quoted(value) + " cannot be used; " + howTo(path, node, value)
	}
	return "cannot be used; " + howTo(path, node, value)
}

// wrongType explains that YAML reads a bare Off, On, Yes or No as a boolean.
func wrongType(path string, node *schema.Structural, value any) string {
	kind := "value of this type"
	switch value.(type) {
	case nil:
		return "is empty; " + howTo(path, node, value)
	case bool:
		kind = "bool"
	case int64, float64:
		kind = "number"
	case string:
		kind = "string"
	case []any:
		kind = "list"
	case map[string]any:
		kind = "object"
	}
	switch {
	case kind == "bool" && node.Type == "string":
		return "takes no bool; YAML takes Off, On, Yes and No for true and false: put the value in quotes"
	case kind == "number" && isDuration(node):
		return fmt.Sprintf("takes no number; write it with its unit, such as %vs", value)
	}
	return "takes no " + kind + "; " + howTo(path, node, value)
}

// isDuration reports a duration, which the schema has no type for.
func isDuration(node *schema.Structural) bool {
	for _, rule := range node.XValidations {
		if strings.Contains(rule.Rule, "duration(self)") {
			return true
		}
	}
	return false
}
