package cluster

import (
	"context"
	"fmt"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/deploy/crds"
)

// MigrationCRD is the CustomResourceDefinition that belongs to this build.
func MigrationCRD() (*apiextensionsv1.CustomResourceDefinition, error) {
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(crds.Migrations, crd); err != nil {
		return nil, fmt.Errorf("reading the built-in CustomResourceDefinition: %w", err)
	}
	return crd, nil
}

// CRDCurrent reports whether the cluster has this build's CustomResourceDefinition and serves it.
func (c *Cluster) CRDCurrent(ctx context.Context) (bool, error) {
	want, err := MigrationCRD()
	if err != nil {
		return false, err
	}
	have := &apiextensionsv1.CustomResourceDefinition{}
	if err := c.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	return sameCRD(want, have) && established(have), nil
}

// InstallCRD creates the CustomResourceDefinition or brings it up to date.
func (c *Cluster) InstallCRD(ctx context.Context) error {
	want, err := MigrationCRD()
	if err != nil {
		return err
	}
	have := &apiextensionsv1.CustomResourceDefinition{}
	err = c.Get(ctx, client.ObjectKeyFromObject(want), have)
	if apierrors.IsNotFound(err) {
		return c.Create(ctx, want, client.FieldOwner("replumb"))
	}
	if err != nil || sameCRD(want, have) {
		return err
	}
	have.Spec.Versions, have.Spec.Names = want.Spec.Versions, want.Spec.Names
	have.Annotations = want.Annotations
	return c.Update(ctx, have, client.FieldOwner("replumb"))
}

// sameCRD compares what replumb says; what the API server adds by default is left out.
func sameCRD(want, have *apiextensionsv1.CustomResourceDefinition) bool {
	return equality.Semantic.DeepDerivative(want.Spec.Versions, have.Spec.Versions)
}

func established(crd *apiextensionsv1.CustomResourceDefinition) bool {
	for _, cond := range crd.Status.Conditions {
		if cond.Type == apiextensionsv1.Established {
			return cond.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}
