package cluster

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/deploy/crds"
)

// Definition is a kind of object that replumb defines.
type Definition string

// The kinds.
const (
	Migration  Definition = "Migration"
	NodeReport Definition = "NodeReport"
)

// CRD is the CustomResourceDefinition that belongs to this build.
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

// Defined is the CustomResourceDefinition that the cluster has; nil if it has none.
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
	return have, nil
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

// CRDCurrent is Current of Migration.
func (c *Cluster) CRDCurrent(ctx context.Context) (bool, error) { return c.Current(ctx, Migration) }

// Define creates the CustomResourceDefinition or brings it up to date.
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
	return c.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
}

// InstallCRD is Define of Migration.
func (c *Cluster) InstallCRD(ctx context.Context) error { return c.Define(ctx, Migration) }

// sameCRD compares the versions, which is where builds differ. The API server adds nothing to them.
func sameCRD(want, have *apiextensionsv1.CustomResourceDefinition) bool {
	return equality.Semantic.DeepEqual(want.Spec.Versions, have.Spec.Versions)
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, cond := range crd.Status.Conditions {
		if cond.Type == apiextensionsv1.Established {
			return cond.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
