package spec

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
)

// Source is a place that Migrations are read from: a file, or stdin.
type Source struct {
	// Name is what people call it.
	Name string
	Body []byte
	// Dir is the base of relative paths: see Locate. Empty leaves them as they are.
	Dir string
}

// Parse reads one Migration strictly and returns all errors of the schema, with the Migration if it
// is readable at all.
func Parse(manifest []byte) (*v1alpha1.Migration, error) {
	return Read(Source{Name: "the file", Body: manifest})
}

// Read takes the only Migration in the sources, in any document or list. Other objects, a second
// Migration and unknown fields are errors, as of Parse.
func Read(sources ...Source) (*v1alpha1.Migration, error) {
	m, _, err := ReadFrom(sources...)
	return m, err
}

// ReadFrom is Read, and the source that the Migration was found in.
func ReadFrom(sources ...Source) (*v1alpha1.Migration, Source, error) {
	found, err := found(sources)
	if err != nil {
		return nil, Source{}, err
	}
	if len(found) == 1 {
		m, err := found[0].migration()
		return m, found[0].source, err
	}
	var names []string
	for _, d := range found {
		names = append(names, fmt.Sprintf("%s (%s)", d.name(), d.source.Name))
	}
	return nil, Source{}, &Error{
		Field: "file", Problem: fmt.Sprintf("holds %d Migrations: %s", len(found), strings.Join(names, ", ")),
		Hint: "this command takes one Migration: give each a file, and run the command for one",
	}
}

// Given is a Migration, and the source that it was found in.
type Given struct {
	Migration *v1alpha1.Migration
	Source    Source
	// Err is what is wrong in it, as Parse has it. Then the Migration may be nil.
	Err error
}

// ReadAll takes all Migrations in the sources, in order, and fails for anything else.
func ReadAll(sources ...Source) ([]Given, error) {
	found, err := found(sources)
	if err != nil {
		return nil, err
	}
	var all []Given
	for _, d := range found {
		m, err := d.migration()
		if len(found) > 1 {
			err = About(cmp.Or(d.name(), "without a name"), err)
		}
		all = append(all, Given{Migration: m, Source: d.source, Err: err})
	}
	return all, nil
}

func found(sources []Source) (all []document, err error) {
	for _, s := range sources {
		more, err := documents(s)
		if err != nil {
			return nil, err
		}
		all = append(all, more...)
	}
	if len(all) == 0 {
		return nil, &Error{Field: "file", Problem: "holds no Migration", Hint: "write one in YAML or JSON: " + somewhere}
	}
	return all, nil
}

// About says of errors of a Migration which of several they are about.
func About(what string, err error) error {
	var many *Invalid
	var one *Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &many):
		all := &Invalid{Of: "Migration for " + what}
		for _, e := range many.Errors {
			all.Errors = append(all.Errors, &Error{Field: e.Field, Problem: e.Problem, Hint: e.Hint})
		}
		return all
	case errors.As(err, &one):
		return &Error{Field: what + ": " + one.Field, Problem: one.Problem, Hint: one.Hint}
	}
	return fmt.Errorf("%s: %w", what, err)
}

type document struct {
	source Source
	body   []byte
	object map[string]any
}

func (d document) name() string {
	metadata, _ := d.object["metadata"].(map[string]any)
	name, _ := metadata["name"].(string)
	return name
}

func documents(s Source) (all []document, err error) {
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(s.Body)))
	read := 0
	for {
		body, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, unreadable(s.Name, 0, err)
		}
		read += max(0, bytes.Index(s.Body[read:], bytes.TrimSpace(body)))
		asJSON, err := yaml.YAMLToJSONStrict(body)
		if err != nil {
			return nil, unreadable(s.Name, bytes.Count(s.Body[:read], []byte("\n")), err)
		}
		if string(asJSON) == "null" {
			continue
		}
		found, err := migrations(s, asJSON)
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
}

var lineOfYAML = regexp.MustCompile(`(?s)^.*?line (\d+): (.*)$`)

// unreadable names the line of a source whose document begins after so many others.
func unreadable(source string, before int, err error) error {
	where, problem := source, strings.TrimPrefix(err.Error(), "yaml: ")
	if m := lineOfYAML.FindStringSubmatch(problem); m != nil {
		if line, err := strconv.Atoi(m[1]); err == nil {
			where, problem = fmt.Sprintf("%s:%d", source, before+line), m[2]
		}
	}
	return &Error{Field: where, Problem: problem, Hint: "write a Migration in YAML or JSON; " + somewhere}
}

func migrations(source Source, body []byte) (all []document, err error) {
	d := document{source: source, body: body, object: map[string]any{}}
	if err := utiljson.Unmarshal(body, &d.object); err != nil {
		return nil, &Error{Field: "file", Problem: "is not an object: " + err.Error(), Hint: somewhere}
	}
	version, kind := fmt.Sprint(d.object["apiVersion"]), fmt.Sprint(d.object["kind"])
	switch {
	case version == v1alpha1.GroupVersion.String() && kind == "Migration":
		return []document{d}, nil
	case version == "v1" && kind == "List" || version == v1alpha1.GroupVersion.String() && kind == "MigrationList":
		list := struct{ Items []json.RawMessage }{}
		if err := json.Unmarshal(body, &list); err != nil {
			return nil, unreadable(source.Name, 0, err)
		}
		for _, item := range list.Items {
			found, err := migrations(source, item)
			if err != nil {
				return nil, err
			}
			all = append(all, found...)
		}
		return all, nil
	}
	return nil, &Error{
		Field:   "apiVersion, kind",
		Problem: fmt.Sprintf("%s, %s in %s is not a Migration", quoted(d.object["apiVersion"]), quoted(d.object["kind"]), source.Name),
		Hint:    "write apiVersion: " + v1alpha1.GroupVersion.String() + " and kind: Migration",
	}
}

func (d document) migration() (*v1alpha1.Migration, error) {
	var bad field.ErrorList
	for _, path := range built().unknown(d.object) {
		bad = append(bad, built().unknownField(path))
	}
	// Before it is read into types, which cannot tell a zero from nothing.
	object := runtime.DeepCopyJSON(d.object)
	delete(object, "status")
	built().complete(object)
	bad = append(bad, built().check(object)...)
	m := &v1alpha1.Migration{}
	strict, err := kjson.UnmarshalStrict(d.body, m)
	if err != nil {
		if len(bad) == 0 {
			bad = append(bad, Wrong("file", err.Error(), somewhere))
		}
		return nil, Refuse(bad)
	}
	for _, err := range strict { // in the metadata, of which the schema knows nothing
		var unknown kjson.FieldError
		if errors.As(err, &unknown) && strings.HasPrefix(unknown.FieldPath(), "metadata.") {
			bad = append(bad, built().unknownField(unknown.FieldPath()))
		}
	}
	if d.source.Dir != "" {
		Locate(m, d.source.Dir)
	}
	return m, Refuse(bad)
}

// movedTo is where a field of earlier versions stands by now; empty if it was none.
func movedTo(path string) string {
	for _, name := range []string{"image", "imagePullSecrets"} {
		if field := strings.TrimSuffix(path, "[]"); field == "spec.proof."+name || strings.HasSuffix(field, ".canary."+name) {
			return "spec." + name
		}
	}
	return ""
}

func (d *definition) unknownField(path string) *field.Error {
	hint := "remove the field or correct its name; replumb does not ignore what it does not know"
	if now := movedTo(path); now != "" {
		return Wrongf(path, "write "+now+", which is for all pods of replumb", "is no field any more")
	}
	if at := strings.LastIndex(path, "."); at > 0 {
		if node, _ := d.at(nil, path[:at]); node != nil {
			if meant := lists.Closest(path[at+1:], slices.Sorted(maps.Keys(node.Properties))); meant != "" {
				hint = "did you mean " + meant + "?"
			}
		}
	}
	return Wrongf(path, hint, "unknown field %q", path)
}
