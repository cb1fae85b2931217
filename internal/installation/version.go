package installation

import (
	"context"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Schema is the revisions of definitions, by their names.
type Schema map[string]int

// Own are the revisions that this build knows.
func Own() (Schema, error) {
	all := Schema{}
	for _, d := range definitions() {
		crd, err := d.CRD()
		if err != nil {
			return nil, err
		}
		all[crd.Name] = cluster.Revision(crd)
	}
	return all, nil
}

// OperatorState is the operator that a cluster has.
type OperatorState struct {
	// Version is empty if the Deployment does not have it.
	Version string `json:"version,omitempty"`
	Image   string `json:"image"`
	// Ready of Replicas are available.
	Ready    int32 `json:"readyReplicas"`
	Replicas int32 `json:"replicas"`
}

// Installed is what a cluster has of replumb.
type Installed struct {
	Schema   Schema         `json:"schema"`
	Operator *OperatorState `json:"operator,omitempty"`
	// Unseen is, a line each, what the user may not look at.
	Unseen []string `json:"unseen,omitempty"`
}

// Look reads what a cluster has of replumb, as far as the user may.
func Look(ctx context.Context, c client.Reader) (*Installed, error) {
	found := &Installed{Schema: Schema{}}
	for _, d := range definitions() {
		crd, err := d.CRD()
		if err != nil {
			return nil, err
		}
		have := &apiextensionsv1.CustomResourceDefinition{}
		err = c.Get(ctx, client.ObjectKeyFromObject(crd), have)
		switch {
		case apierrors.IsForbidden(err):
			found.Unseen = append(found.Unseen, "customresourcedefinition "+crd.Name)
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("customresourcedefinition %s: %w", crd.Name, err)
		case err == nil:
			found.Schema[crd.Name] = cluster.Revision(have)
		}
	}
	d := &appsv1.Deployment{}
	key := client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: Operator}
	err := c.Get(ctx, key, d)
	switch {
	case apierrors.IsForbidden(err):
		found.Unseen = append(found.Unseen, "deployment "+key.String())
	case client.IgnoreNotFound(err) != nil:
		return nil, fmt.Errorf("deployment %s: %w", key, err)
	case err == nil:
		found.Operator = stateOf(d)
	}
	return found, nil
}

func stateOf(d *appsv1.Deployment) *OperatorState {
	state := &OperatorState{Version: d.Labels[LabelVersion], Ready: d.Status.AvailableReplicas, Replicas: ptr.Deref(d.Spec.Replicas, 1)}
	for i := range d.Spec.Template.Spec.Containers {
		if c := &d.Spec.Template.Spec.Containers[i]; c.Name == "replumb" {
			state.Image = c.Image
		}
	}
	return state
}

const furthest = 1

// SkewError says that a client and the operator of a cluster are of versions too far from each
// other: docs/support.md.
type SkewError struct{ Client, Operator string }

func (e *SkewError) Error() string {
	return fmt.Sprintf("this is replumb %s, and the operator in the cluster is %s: they may be one minor version apart",
		e.Client, e.Operator)
}

func (e *SkewError) Advice() string {
	return "use the client of the operator's version, or bring the operator to this one: replumb install --apply; nothing was changed"
}

func (*SkewError) ExitCode() int { return fault.ExitBlocked }

// Compare fails with a *SkewError if a client and an operator are too far apart. known is false if
// one of them is no release, so that they cannot be compared.
func Compare(clientVersion, operatorVersion string) (known bool, err error) {
	mine, other := parsed(clientVersion), parsed(operatorVersion)
	if mine == nil || other == nil {
		return false, nil
	}
	near := mine.Major() == other.Major() && max(mine.Minor(), other.Minor())-min(mine.Minor(), other.Minor()) <= furthest
	if !near {
		return true, &SkewError{Client: clientVersion, Operator: operatorVersion}
	}
	return true, nil
}

// parsed is a version of a release, or of a build after one; nil if it is none.
func parsed(text string) *version.Version {
	v, err := version.ParseSemantic(text)
	if err != nil {
		return nil
	}
	return v
}

// Fits fails with a *SkewError if the operator is too far from the client, and with a
// *cluster.NewerError if a definition is newer than the client's.
func (i *Installed) Fits(clientVersion string) error {
	own, err := Own()
	if err != nil {
		return err
	}
	for name, have := range i.Schema {
		if have > own[name] {
			return &cluster.NewerError{Name: name, Have: have, Own: own[name]}
		}
	}
	if i.Operator == nil {
		return nil
	}
	_, err = Compare(clientVersion, i.Operator.Version)
	return err
}
