package migrationtest

import (
	"context"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Lacking is a cluster for those who ask whether an object is there: it has all but those of these
// names.
type Lacking []string

var _ client.Reader = Lacking(nil)

func (l Lacking) Get(_ context.Context, key client.ObjectKey, _ client.Object, _ ...client.GetOption) error {
	if slices.Contains(l, key.Name) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	return nil
}

func (Lacking) List(context.Context, client.ObjectList, ...client.ListOption) error { return nil }
