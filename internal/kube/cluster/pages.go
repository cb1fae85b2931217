package cluster

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// PageSize is kubectl's.
const PageSize = 500

// List drops managedFields, which are half of the memory in a large cluster.
func List[T any](ctx context.Context, c client.Client, of client.ObjectList) ([]T, error) {
	var all []T
	err := EachPage(ctx, c, of, PageSize, func(o client.Object) {
		o.SetManagedFields(nil)
		all = append(all, *any(o).(*T))
	})
	return all, err
}

// Each keeps no object of a collection.
func Each(ctx context.Context, c client.Client, of client.ObjectList, take func(client.Object), opts ...client.ListOption) error {
	return EachPage(ctx, c, of, PageSize, take, opts...)
}

// EachPage makes a fresh list for every page, so that take may keep objects.
func EachPage(
	ctx context.Context, c client.Client, of client.ObjectList, size int64, take func(client.Object), opts ...client.ListOption,
) error {
	token := ""
	for {
		page, ok := of.DeepCopyObject().(client.ObjectList)
		if !ok {
			return fmt.Errorf("listing %T: not a list", of)
		}
		if err := c.List(ctx, page, append([]client.ListOption{client.Limit(size), client.Continue(token)}, opts...)...); err != nil {
			return fmt.Errorf("listing %s: %w", strings.TrimPrefix(strings.TrimSuffix(fmt.Sprintf("%T", of), "List"), "*"), err)
		}
		if err := meta.EachListItem(page, func(o runtime.Object) error {
			item, ok := o.(client.Object)
			if !ok {
				return fmt.Errorf("listing %T: %T is no object", of, o)
			}
			take(item)
			return nil
		}); err != nil {
			return err
		}
		if token = page.GetContinue(); token == "" {
			return nil
		}
	}
}
