package installation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/migrations"
)

type section struct {
	name, title string
	objects     []*unstructured.Unstructured
}

func definitions() []cluster.Definition {
	return []cluster.Definition{cluster.Migration, cluster.NodeReport}
}

// sections are the parts of an installation, in the order in which they are made.
func sections(o Options) ([]section, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	crds, err := crds()
	if err != nil {
		return nil, err
	}
	all := []section{{name: "definitions", title: "Define Migration and NodeReport", objects: crds}}
	for _, part := range []struct {
		name, title string
		of          []Scope
		build       func(Options) ([]client.Object, error)
	}{
		{"guard", "Keep older builds from replacing the definitions", []Scope{Everything, WithoutOperator, Definitions}, guard},
		{"namespaces", "Create the namespaces of replumb", []Scope{Everything, WithoutOperator}, namespaces},
		{"roles", "Create roles for users", []Scope{Everything, WithoutOperator}, userRoles},
		{"rights", "Let the operator do what migrations need", []Scope{Everything}, rights},
		{"operator", "Run the operator", []Scope{Everything}, operator},
	} {
		if !slices.Contains(part.of, o.Scope) {
			continue
		}
		typed, err := part.build(o)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", part.name, err)
		}
		if len(typed) == 0 {
			continue
		}
		objects, err := workload.Written(typed...)
		if err != nil {
			return nil, err
		}
		all = append(all, section{name: part.name, title: part.title, objects: objects})
	}
	return all, nil
}

// Objects are the objects of an installation, as written, in their order. It fails with ErrNoImage
// or ErrNoReplicas if no operator could run.
func Objects(o Options) ([]*unstructured.Unstructured, error) {
	parts, err := sections(o)
	var all []*unstructured.Unstructured
	for _, p := range parts {
		all = append(all, p.objects...)
	}
	return all, err
}

// YAML is objects as documents of one file, for kubectl apply.
func YAML(all []*unstructured.Unstructured) ([]byte, error) {
	var text strings.Builder
	for _, o := range all {
		body, err := yaml.Marshal(o.Object)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", workload.NameOf(o), err)
		}
		text.WriteString("---\n")
		text.Write(body)
	}
	return []byte(text.String()), nil
}

// JSON is objects as one List.
func JSON(all []*unstructured.Unstructured) ([]byte, error) {
	list := map[string]any{"apiVersion": "v1", "kind": "List"}
	var items []any
	for _, o := range all {
		items = append(items, o.Object)
	}
	list["items"] = items
	body, err := json.MarshalIndent(list, "", "  ")
	return append(body, '\n'), err
}

func crds() ([]*unstructured.Unstructured, error) {
	var all []client.Object
	for _, d := range definitions() {
		crd, err := d.CRD()
		if err != nil {
			return nil, err
		}
		all = append(all, crd)
	}
	return workload.Written(all...)
}

// labels are those of the operator's objects, and not those by which docs/rights.md has users'
// bindings removed.
func labels() map[string]string {
	return map[string]string{LabelName: "replumb", LabelComponent: Argument}
}

// namespaces belong to no migration, so none removes them.
func namespaces(Options) ([]client.Object, error) {
	return decode(rbac.Namespaces())
}

func userRoles(o Options) ([]client.Object, error) {
	var all []client.Object
	for _, kind := range migrations.All() {
		for _, role := range kind.Roles.Of(o.Purposes...) {
			objects, err := decode(rbac.Manifest(role))
			if err != nil {
				return nil, fmt.Errorf("role %s: %w", role.Name, err)
			}
			all = append(all, objects...)
		}
	}
	return all, nil
}

func decode(text string) ([]client.Object, error) {
	var all []client.Object
	for doc := range strings.SplitSeq(text, "---\n") {
		if strings.TrimSpace(doc) == "" {
			continue
		}
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			return nil, err
		}
		all = append(all, u)
	}
	return all, nil
}
