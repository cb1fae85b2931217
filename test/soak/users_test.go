package main

import (
	"context"
	"errors"
	"io"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/replumb/replumb/test/soak/model"
)

func resource() schema.GroupResource { return schema.GroupResource{Resource: "services"} }

func refusal() error {
	return apierrors.NewForbidden(
		resource(),
		"x",
		errors.New("ValidatingAdmissionPolicy 'replumb-freeze' with binding 'replumb-freeze' denied request: y"),
	)
}

func TestWhichErrorsPass(t *testing.T) {
	broken := &url.Error{Op: "Patch", URL: "https://127.0.0.1:1", Err: io.EOF}
	for name, test := range map[string]struct {
		err               error
		temporary, frozen bool
	}{
		"no answer":         {broken, true, false},
		"etcd has no head":  {apierrors.NewInternalError(errors.New("etcdserver: leader changed")), true, false},
		"too many requests": {apierrors.NewTooManyRequests("later", 1), true, false},
		"not ready":         {apierrors.NewServiceUnavailable("x"), true, false},
		"written by others": {apierrors.NewConflict(resource(), "x", errors.New("y")), true, false},
		"the freeze":        {refusal(), false, true},
		"another policy": {
			apierrors.NewForbidden(resource(), "x", errors.New("ValidatingAdmissionPolicy 'replumb-freeze-deploys' denied")), false, false,
		},
		"no right": {apierrors.NewForbidden(resource(), "x", errors.New("RBAC")), false, false},
		"invalid":  {apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "x", nil), false, false},
		"gone":     {apierrors.NewNotFound(resource(), "x"), false, false},
	} {
		t.Run(name, func(t *testing.T) {
			if temporary(test.err) != test.temporary || frozen(test.err) != test.frozen {
				t.Errorf("temporary %v, want %v; frozen %v, want %v", temporary(test.err), test.temporary, frozen(test.err), test.frozen)
			}
		})
	}
}

// failing is a client whose first writes fail: some before they are made, some after.
func failing(before, after error) client.Client {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := before; err != nil {
				before = nil
				return err
			}
			err := c.Create(ctx, o, opts...)
			if failed := after; err == nil && failed != nil {
				after = nil
				return failed
			}
			return err
		},
	})
}

func TestWritesAreMadeOnce(t *testing.T) {
	broken := &url.Error{Op: "Post", URL: "https://127.0.0.1:1", Err: io.EOF}
	write := model.Write{Verb: model.Create, Object: &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "churn", Name: "x"}}}
	for name, test := range map[string]struct {
		before, after, want error
	}{
		"at once":                       {nil, nil, nil},
		"lost on the way there":         {broken, nil, nil},
		"lost on the way back":          {nil, broken, nil},
		"refused":                       {refusal(), nil, refusal()},
		"there already, made by others": {apierrors.NewAlreadyExists(resource(), "x"), nil, apierrors.NewAlreadyExists(resource(), "x")},
	} {
		t.Run(name, func(t *testing.T) {
			u := &users{client: failing(test.before, test.after)}
			err := u.write(t.Context(), write)
			if (err == nil) != (test.want == nil) || (err != nil && err.Error() != test.want.Error()) {
				t.Fatalf("it ends with %v, want %v", err, test.want)
			}
			there := u.client.Get(t.Context(), client.ObjectKeyFromObject(write.Object), &corev1.Service{}) == nil
			if there != (test.want == nil) {
				t.Errorf("the service is there: %v", there)
			}
		})
	}
}

// refusing is a client that refuses every patch and deletion of Services.
func refusing(err error) client.Client {
	return interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if _, yes := o.(*corev1.Service); yes && strings.Contains(string(must(p.Data(o))), `"spec"`) {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if _, yes := o.(*corev1.Service); yes {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// TestOnlyTheFreezeMayRefuse has users at work in a cluster that refuses some of what they do.
func TestOnlyTheFreezeMayRefuse(t *testing.T) {
	for name, test := range map[string]struct {
		stage model.Stage
		err   error
		fails bool
	}{
		"the freeze, in a migration":       {model.Moving, refusal(), false},
		"the freeze, without a migration":  {model.Quiet, refusal(), true},
		"the freeze, of what must go on":   {model.Overlap, refusal(), true},
		"something else, in a migration":   {model.Moving, apierrors.NewForbidden(resource(), "x", errors.New("RBAC")), true},
		"an invalid object in a migration": {model.Moving, apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, "x", nil), true},
	} {
		t.Run(name, func(t *testing.T) {
			u := &users{client: refusing(test.err), generator: model.New(1), stages: &stages{}}
			for _, o := range u.generator.Base() {
				if err := u.client.Create(t.Context(), o); err != nil {
					t.Fatal(err)
				}
			}
			u.stages.enter(test.stage, time.Now().Add(-time.Hour))
			var err error
			for i := 0; i < 60 && err == nil; i++ {
				err = u.one(t.Context())
			}
			done, refused, last := u.counted()
			if (err != nil) != test.fails || (err == nil && (refused == 0 || done == 0)) || len(last) == 0 {
				t.Errorf("after %d operations, %d refused: %v", done, refused, err)
			}
		})
	}
}
