//go:build apiserver && long

package journal

import (
	"context"
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestReader has what Load has, at any time, and reads of the ConfigMaps only those that have
// changed.
func TestReader(t *testing.T) {
	s := empty(t)
	m := recorded(t, s)
	whole := 0
	counting := interceptor.NewClient(s.WithWatch, interceptor.Funcs{
		List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			if _, ok := list.(*corev1.ConfigMapList); ok {
				whole++
			}
			return c.List(ctx, list, opts...)
		},
	})
	r := NewReader(counting, m)
	read := func(want int) {
		t.Helper()
		before := whole
		got, err := r.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if have := load(t, s); !reflect.DeepEqual(got, have) {
			t.Errorf("read %+v, and there is %+v", got, have)
		}
		if whole-before != want {
			t.Errorf("%d ConfigMaps were read, want %d", whole-before, want)
		}
	}
	read(0)
	for i := range 3 {
		w := NewWriter(s, m, func() time.Time { return clock().Add(time.Duration(i) * time.Hour) })
		w.Begin(Run{Command: fmt.Sprint("run ", i)})
		w.Sample(sample(360 * i))
		flush(t, w)
		read(1)
		read(0)
	}
	if err := s.Delete(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	w := NewWriter(s, recorded(t, s), clock)
	w.Begin(Run{Command: "another Migration of the name"})
	flush(t, w)
	if got, err := r.Read(t.Context()); err != nil || len(got.Runs) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}
