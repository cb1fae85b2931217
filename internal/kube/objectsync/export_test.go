//go:build apiserver && long

package objectsync

import (
	"context"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// Objects are a client of a side, with which tests write.
func (s *Side) Objects() dynamic.Interface { return s.objects }

// Count counts a kind.
func (s *Side) Count(ctx context.Context, k objects.ResourceKind) (int, error) {
	return s.count(ctx, k)
}

// Once is one attempt to copy an object that the target does not have.
func (c *Copier) Once(ctx context.Context, k objects.ResourceKind, o *unstructured.Unstructured) *ObjectError {
	return c.one(ctx, k, o, nil).err
}
