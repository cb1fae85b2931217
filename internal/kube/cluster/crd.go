package cluster

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/deploy/crds"
)

// Definition is a kind of replumb's own.
type Definition string

// The kinds.
const (
	Migration  Definition = "Migration"
	NodeReport Definition = "NodeReport"
)

// CRD is the CustomResourceDefinition of this build.
func (d Definition) CRD() (*apiextensionsv1.CustomResourceDefinition, error) {
	body := crds.Migrations
	if d == NodeReport {
		body = crds.NodeReports
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(body, crd); err != nil {
		return nil, fmt.Errorf("reading the built-in CustomResourceDefinition of %s: %w", d, err)
	}
	return crd, nil
}

// NewerError reports a definition of a newer build, from which this one would remove fields.
type NewerError struct {
	// Name of the CustomResourceDefinition.
	Name string
	// Have and Own are the revisions of its schema: the cluster's, and this build's.
	Have, Own int
}

func (e *NewerError) Error() string {
	return fmt.Sprintf("customresourcedefinition %s has schema revision %d, and this replumb knows revision %d", e.Name, e.Have, e.Own)
}

func (*NewerError) Advice() string {
	return "use the version of replumb that installed it, or a later one; nothing was changed"
}

func (*NewerError) ExitCode() int { return 3 }

// Revision counts the changes of a definition's schema. Definitions from before the count have 0.
func Revision(crd *apiextensionsv1.CustomResourceDefinition) int {
	n, _ := strconv.Atoi(crd.Annotations[v1alpha1.AnnotationSchemaRevision])
	return n
}

// Defined is the CustomResourceDefinition in the cluster, or nil. It returns a *NewerError for one
// of a newer build, so that an older build stops before it writes.
func (c *Cluster) Defined(ctx context.Context, d Definition) (*apiextensionsv1.CustomResourceDefinition, error) {
	want, err := d.CRD()
	if err != nil {
		return nil, err
	}
	have := &apiextensionsv1.CustomResourceDefinition{}
	err = c.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("customresourcedefinition %s: %w", want.Name, err)
	}
	if Revision(have) > Revision(want) {
		return nil, &NewerError{Name: want.Name, Have: Revision(have), Own: Revision(want)}
	}
	return have, nil
}

// Revisions are the schema revisions of this build and of the cluster: -1 for none.
func (c *Cluster) Revisions(ctx context.Context, d Definition) (own, have int, err error) {
	want, err := d.CRD()
	if err != nil {
		return 0, 0, err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	err = c.Get(ctx, client.ObjectKeyFromObject(want), crd)
	switch {
	case apierrors.IsNotFound(err):
		return Revision(want), -1, nil
	case err != nil:
		return 0, 0, fmt.Errorf("customresourcedefinition %s: %w", want.Name, err)
	}
	return Revision(want), Revision(crd), nil
}

// CRD is the CustomResourceDefinition of Migration that the cluster has; nil if it has none.
func (c *Cluster) CRD(ctx context.Context) (*apiextensionsv1.CustomResourceDefinition, error) {
	return c.Defined(ctx, Migration)
}

// Current reports whether the cluster has this build's CustomResourceDefinition and serves it.
func (c *Cluster) Current(ctx context.Context, d Definition) (bool, error) {
	want, err := d.CRD()
	if err != nil {
		return false, err
	}
	have, err := c.Defined(ctx, d)
	if err != nil || have == nil {
		return false, err
	}
	return sameCRD(want, have) && established(have), nil
}

// Define creates the CustomResourceDefinition or brings it up to date. It leaves one of a newer
// build alone, and returns a *NewerError.
func (c *Cluster) Define(ctx context.Context, d Definition) error {
	want, err := d.CRD()
	if err != nil {
		return err
	}
	have, err := c.Defined(ctx, d)
	switch {
	case err != nil:
		return err
	case have == nil:
		return c.Create(ctx, want, client.FieldOwner(v1alpha1.FieldManager))
	case sameCRD(want, have):
		return nil
	}
	have.Spec.Versions = want.Spec.Versions
	have.Spec.Names.ShortNames, have.Spec.Names.Categories = want.Spec.Names.ShortNames, want.Spec.Names.Categories
	if have.Annotations == nil {
		have.Annotations = map[string]string{}
	}
	have.Annotations[v1alpha1.AnnotationSchemaRevision] = want.Annotations[v1alpha1.AnnotationSchemaRevision]
	return c.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
}

// sameCRD compares the parts in which builds differ, to which the API server adds nothing.
func sameCRD(want, have *apiextensionsv1.CustomResourceDefinition) bool {
	return Revision(want) == Revision(have) &&
		equality.Semantic.DeepEqual(want.Spec.Versions, have.Spec.Versions) &&
		slices.Equal(want.Spec.Names.ShortNames, have.Spec.Names.ShortNames) &&
		slices.Equal(want.Spec.Names.Categories, have.Spec.Names.Categories)
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, cond := range crd.Status.Conditions {
		if cond.Type == apiextensionsv1.Established {
			return cond.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
