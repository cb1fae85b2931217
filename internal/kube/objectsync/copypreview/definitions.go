package copypreview

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// maxFields is how many unknown fields of one definition are listed.
const maxFields = 10

// definitionPair is one definition as both sides have it.
type definitionPair struct {
	source, target *apiextensionsv1.CustomResourceDefinition
	// replaced says that the target gets the source's.
	replaced bool
}

// definitionPairs are the definitions that both sides have, by name.
func definitionPairs(ctx context.Context, c *objectsync.Copier) (map[string]*definitionPair, error) {
	pairs := map[string]*definitionPair{}
	k := objects.Definitions()
	err := c.Source.Each(ctx, k, func(o *unstructured.Unstructured) error {
		crd, err := definitionOf(o)
		pairs[o.GetName()] = &definitionPair{source: crd, replaced: c.Rules.WhyNot(k, o) == ""}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading %s of the source: %w", k, err)
	}
	err = c.Target.Each(ctx, k, func(o *unstructured.Unstructured) error {
		p := pairs[o.GetName()]
		if p == nil {
			return nil
		}
		p.replaced = p.replaced && (c.Rules.Owns(o) || c.Rules.Existing() == v1alpha1.ExistingOverwrite)
		p.target, err = definitionOf(o)
		return err
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading %s of the target: %w", k, err)
	}
	for name, p := range pairs {
		if p.target == nil {
			delete(pairs, name)
		}
	}
	return pairs, nil
}

func definitionOf(o *unstructured.Unstructured) (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, crd); err != nil {
		return nil, fmt.Errorf("definition %s: %w", o.GetName(), err)
	}
	return crd, nil
}

// versions says how versions are in the way of copies; empty, if they are not.
func (p *definitionPair) versions() string {
	var here, served []string
	stored := ""
	for _, v := range p.source.Spec.Versions {
		here = append(here, v.Name)
		if v.Storage {
			stored = v.Name
		}
	}
	for _, v := range p.target.Spec.Versions {
		if v.Served {
			served = append(served, v.Name)
		}
	}
	if !p.replaced {
		if slices.Contains(served, stored) {
			return ""
		}
		return fmt.Sprintf("is stored as %s in the source, and the target serves %s", stored, strings.Join(served, ", "))
	}
	for _, v := range p.target.Status.StoredVersions {
		if !slices.Contains(here, v) {
			return fmt.Sprintf("has objects stored as %s in the target, a version that the source's definition, which is to replace it, does not have", v)
		}
	}
	return ""
}

// fieldReader finds the fields of copies that a definition of the target does not know.
type fieldReader struct {
	schema *structural.Structural
	// index is that of an item of a list, in a path.
	index *regexp.Regexp
	known map[string]bool
}

// fields is nil for a definition that is replaced, or that keeps whatever it gets.
func (p *definitionPair) fields(version string) (*fieldReader, error) {
	i := slices.IndexFunc(p.target.Spec.Versions, func(v apiextensionsv1.CustomResourceDefinitionVersion) bool { return v.Name == version })
	if p.replaced || p.target.Spec.PreserveUnknownFields || i < 0 || p.target.Spec.Versions[i].Schema == nil {
		return nil, nil
	}
	props := &apiextensions.JSONSchemaProps{}
	of := p.target.Spec.Versions[i].Schema.OpenAPIV3Schema
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(of, props, nil); err != nil {
		return nil, fmt.Errorf("definition %s of the target: %w", p.target.Name, err)
	}
	schema, err := structural.NewStructural(props)
	if err != nil {
		return nil, fmt.Errorf("definition %s of the target: %w", p.target.Name, err)
	}
	return &fieldReader{schema: schema, index: regexp.MustCompile(`\[\d+\]`), known: map[string]bool{}}, nil
}

// unknown are the fields of a copy that no earlier one had.
func (f *fieldReader) unknown(taken *unstructured.Unstructured) []string {
	paths := pruning.PruneWithOptions(runtime.DeepCopyJSON(taken.Object), f.schema, true,
		structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	var out []string
	for _, path := range paths {
		path = f.index.ReplaceAllString(path, "[]")
		if !f.known[path] && len(f.known) < maxFields {
			f.known[path] = true
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out
}

// readFields prepares a look at the copies of a kind.
func (s *surveyor) readFields(k objects.ResourceKind) (err error) {
	s.reader = nil
	if p := s.definitions[k.String()]; p != nil {
		s.reader, err = p.fields(k.Version)
	}
	return err
}

func (s *surveyor) noteFields(k objects.ResourceKind, taken *unstructured.Unstructured) {
	if s.reader == nil {
		return
	}
	for _, field := range s.reader.unknown(taken) {
		s.Definitions = append(s.Definitions, objects.Note{
			Ref: objects.RefOf(k, taken), What: fmt.Sprintf("has %s, which %s of the target does not know, and drops", field, k.Version),
		})
	}
}

func (s *surveyor) noteVersions(k objects.ResourceKind) {
	if p := s.definitions[k.String()]; p != nil {
		if what := p.versions(); what != "" {
			s.Definitions = append(s.Definitions, objects.Note{Ref: objects.Ref{Resource: objects.Definitions().String(), Name: k.String()}, What: what})
		}
	}
}
