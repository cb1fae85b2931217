package agent

import (
	"context"
	"fmt"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// store has the latest known objects of a kind, also while the API server is away.
type store[T client.Object] struct {
	kind    string
	shrink  func(T) T
	changed func()

	mu      sync.Mutex
	objects map[types.NamespacedName]T
	synced  bool
	problem error
}

var _ cache.ReflectorStore = (*store[client.Object])(nil)

func newStore[T client.Object](kind string, shrink func(T) T, changed func()) *store[T] {
	return &store[T]{kind: kind, shrink: shrink, changed: changed, objects: map[types.NamespacedName]T{}}
}

func (s *store[T]) follow(ctx context.Context, c client.WithWatch, newList func() client.ObjectList, only client.ListOptions) {
	var example T
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := newList()
			some := only
			some.Limit, some.Continue, some.Raw = o.Limit, o.Continue, &o
			err := c.List(ctx, list, &some)
			return list, s.note(ctx, err)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			some := only
			some.Raw = &o
			w, err := c.Watch(ctx, newList(), &some)
			return w, s.note(ctx, err)
		},
	}
	// Usual pauses grow to half a minute, but API servers restart during a migration.
	pauses := &wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Cap: 3 * time.Second, Steps: 5}
	cache.NewReflectorWithOptions(source, example, s, cache.ReflectorOptions{Name: s.kind, Backoff: pauses}).RunWithContext(ctx)
}

func (s *store[T]) note(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = err
	return err
}

func (s *store[T]) trouble() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.problem != nil:
		return fmt.Errorf("watching %s: %w", s.kind, s.problem)
	case !s.synced:
		return fmt.Errorf("watching %s: nothing was listed yet", s.kind)
	}
	return nil
}

// all returns shared, immutable objects, and whether they were listed once.
func (s *store[T]) all() (objects []T, synced bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects = make([]T, 0, len(s.objects))
	for _, o := range s.objects {
		objects = append(objects, o)
	}
	return objects, s.synced
}

func (s *store[T]) Add(obj any) error { return s.Update(obj) }

func (s *store[T]) Update(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("watching %s: got a %T", s.kind, obj)
	}
	s.mu.Lock()
	s.objects[client.ObjectKeyFromObject(o)] = s.shrink(o)
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *store[T]) Delete(obj any) error {
	o, ok := obj.(T)
	if !ok {
		return fmt.Errorf("watching %s: got a %T", s.kind, obj)
	}
	s.mu.Lock()
	delete(s.objects, client.ObjectKeyFromObject(o))
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *store[T]) Replace(list []any, _ string) error {
	objects := make(map[types.NamespacedName]T, len(list))
	for _, obj := range list {
		o, ok := obj.(T)
		if !ok {
			return fmt.Errorf("watching %s: got a %T", s.kind, obj)
		}
		objects[client.ObjectKeyFromObject(o)] = s.shrink(o)
	}
	s.mu.Lock()
	s.objects, s.synced = objects, true
	s.mu.Unlock()
	s.changed()
	return nil
}

func (s *store[T]) Resync() error { return nil }
