package fleet

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/spec"
)

const example = "examples/fleet in the repository of replumb has one"

type document struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec Spec `json:"spec"`
}

// Parse reads the one Fleet in a source strictly. Relative paths become those of the source's
// folder.
func Parse(s spec.Source) (*Fleet, error) {
	body, err := single(s, Kind)
	if err != nil {
		return nil, err
	}
	d := document{}
	strict, err := kjson.UnmarshalStrict(body, &d)
	if err != nil {
		return nil, &spec.Error{Field: "file", Problem: oneLine(err), Hint: example}
	}
	if !d.supported() {
		return nil, &spec.Error{
			Field: "apiVersion, kind", Problem: fmt.Sprintf("%q, %q is not a Fleet", d.APIVersion, d.Kind),
			Hint: "write apiVersion: " + v1alpha1.GroupVersion.String() + " and kind: " + Kind,
		}
	}
	var bad field.ErrorList
	for _, err := range strict {
		var unknown kjson.FieldError
		if errors.As(err, &unknown) {
			bad = append(bad,
				spec.Wrong(unknown.FieldPath(), oneLine(err), "remove the field or correct its name; a Fleet has no other fields"))
		}
	}
	f := &Fleet{Name: d.Metadata.Name, Spec: d.Spec, Dir: s.Dir}
	if err := refuse(append(bad, f.check()...)); err != nil {
		return nil, err
	}
	f.locate()
	return f, nil
}

func refuse(all field.ErrorList) error {
	err := spec.Refuse(all)
	var many *spec.Invalid
	if errors.As(err, &many) {
		many.Of = Kind
	}
	return err
}

func oneLine(err error) string {
	return strings.NewReplacer("\n", " ", "; ", ", ").Replace(err.Error())
}

func single(s spec.Source, kind string) ([]byte, error) {
	wrong := func(problem string) error {
		return &spec.Error{Field: "file", Problem: problem, Hint: fmt.Sprintf("%s must hold one %s in YAML or JSON", s.Name, kind)}
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(s.Body)))
	var found [][]byte
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, wrong(oneLine(err))
		}
		body, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			return nil, wrong(oneLine(err))
		}
		if string(body) != "null" {
			found = append(found, body)
		}
	}
	if len(found) != 1 {
		return nil, wrong(fmt.Sprintf("holds %d documents", len(found)))
	}
	return found[0], nil
}

func (f *Fleet) locate() {
	from := func(path *string) {
		if *path != "" && !filepath.IsAbs(*path) && f.Dir != "" {
			*path = filepath.Join(f.Dir, *path)
		}
	}
	from(&f.Spec.Migration)
	for i := range f.Spec.Clusters {
		from(&f.Spec.Clusters[i].Kubeconfig)
	}
	if h := f.Spec.Health; h != nil && h.Exec != nil && strings.ContainsRune(h.Exec.Command[0], '/') {
		from(&h.Exec.Command[0])
	}
}

func (d *document) supported() bool {
	return d.APIVersion == v1alpha1.GroupVersion.String() && d.Kind == Kind
}
