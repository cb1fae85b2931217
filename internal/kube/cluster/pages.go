package cluster

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pageSize of lists, as kubectl has it.
const pageSize = 500

// List reads a whole collection page by page, without managedFields: nothing is made from them, and
// in a large cluster they are half of the memory.
func List[T any](ctx context.Context, c client.Client, of client.ObjectList) ([]T, error) {
	var all []T
	err := eachPage(ctx, c, of, pageSize, func(o client.Object) {
		o.SetManagedFields(nil)
		all = append(all, *any(o).(*T))
	})
	return all, err
}

// Each reads a whole collection page by page, and hands out its objects one by one, so that none
// needs to be kept.
func Each(ctx context.Context, c client.Client, of client.ObjectList, take func(client.Object), opts ...client.ListOption) error {
	return eachPage(ctx, c, of, pageSize, take, opts...)
}

// eachPage reads a collection page by page and hands out its objects one by one. of says what to
// list; a fresh list is made for every page, so that objects may be kept.
func eachPage(
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
