//go:build apiserver && long

package gitops

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/migrationtest"
)

var lazy = &apitest.Lazy{Range: "10.96.0.0/16"}

func TestMain(m *testing.M) { os.Exit(lazy.Main(m)) }

// gitOps is a cluster with the definitions of Argo CD and Flux, and a client that knows them.
func gitOps(t *testing.T) client.Client {
	t.Helper()
	s := lazy.Get(t)
	for _, ns := range []string{"argocd", "flux-system", "shop", v1alpha1.SystemNamespace} {
		s.Namespace(t, ns)
	}
	return migrationtest.GitOps(t, s)
}

func create(t *testing.T, c client.Client, body string) *unstructured.Unstructured {
	t.Helper()
	o := object(t, body)
	o.SetUID("")
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		return c.Create(ctx, o) == nil, nil
	})
	if err != nil {
		t.Fatalf("%s: %v", Title(o), err)
	}
	return o
}

func spec(t *testing.T, c client.Client, o *unstructured.Unstructured) string {
	t.Helper()
	have := &unstructured.Unstructured{}
	have.SetGroupVersionKind(o.GroupVersionKind())
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(o), have); err != nil {
		t.Fatal(err)
	}
	if notes := have.GetAnnotations(); len(notes) > 0 {
		return text(t, &unstructured.Unstructured{Object: map[string]any{"notes": len(notes), "spec": have.Object["spec"]}})
	}
	return text(t, &unstructured.Unstructured{Object: map[string]any{"spec": have.Object["spec"]}})
}

func run(t *testing.T, step engine.Step) {
	t.Helper()
	plan := &engine.Plan{Phases: []engine.Phase{{Name: "p", Groups: engine.InOrder(step)}}}
	if err := (&engine.Runner{Sink: func(engine.Event) {}}).Run(t.Context(), plan); err != nil {
		t.Fatal(err)
	}
	if state, err := step.State(t.Context()); state != engine.Done || err != nil {
		t.Fatalf("after %s: %v, %v", step.ID(), state, err)
	}
}

// cutOff is a client that is killed after so many patches.
type cutOff struct {
	client.Client
	left int
}

func (c *cutOff) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if c.left--; c.left < 0 {
		return errors.New("killed")
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

// TestSuspendedAndResumed: killed in the middle of each way, everything is as it was in the end,
// but for what its owner has changed.
func TestSuspendedAndResumed(t *testing.T) {
	c := gitOps(t)
	objects := []*unstructured.Unstructured{
		create(t, c, application+"{syncPolicy: {automated: {prune: true, selfHeal: true}, syncOptions: [a]}}"),
		create(t, c, strings.Replace(application, "name: shop", "name: by-hand", 1)+"{project: a}"),
		create(t, c, kustomization+"{path: a}"),
		create(t, c, strings.Replace(kustomization, "name: apps", "name: said", 1)+"{suspend: false}"),
		create(t, c, strings.Replace(kustomization, "name: apps", "name: own", 1)+"{suspend: true}"),
		create(t, c, helmRelease+"{interval: 1m}"),
	}
	theirs := create(t, c, strings.Replace(helmRelease, "name: cart", "name: theirs", 1)+"{interval: 1m}")
	var before []string
	for _, o := range objects {
		before = append(before, spec(t, c, o))
	}
	killed := &Suspend{Client: &cutOff{c, 2}, Migration: "move"}
	if err := killed.Do(t.Context()); err == nil {
		t.Fatal("it was not killed")
	}
	if state, err := killed.State(t.Context()); state != engine.Pending || err != nil {
		t.Fatalf("killed: %v, %v", state, err)
	}
	run(t, &Suspend{Client: c, Migration: "move"})
	for i, o := range objects {
		if was := i != 1 && i != 4; (spec(t, c, o) != before[i]) != was {
			t.Errorf("%s is suspended: %v, was %s", Title(o), spec(t, c, o), before[i])
		}
	}
	if of, err := Holder(t.Context(), c); of != "move" || err != nil {
		t.Errorf("suspended by %q, %v", of, err)
	}
	resumed := theirs.DeepCopy()
	if err := c.Patch(
		t.Context(),
		resumed,
		client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"suspend":false}}`)),
	); err != nil {
		t.Fatal(err)
	}
	other := &Resume{Client: c, Migration: "other"}
	if state, err := other.State(t.Context()); state != engine.Done || err != nil {
		t.Errorf("another migration resumes: %v, %v", state, err)
	}
	if err := (&Resume{Client: &cutOff{c, 2}, Migration: "move"}).Do(t.Context()); err == nil {
		t.Fatal("it was not killed")
	}
	last := &Resume{Client: c}
	run(t, last)
	for i, o := range objects {
		if got := spec(t, c, o); got != before[i] {
			t.Errorf("%s is %s, was %s", Title(o), got, before[i])
		}
	}
	if got := spec(t, c, theirs); got != `{"spec":{"interval":"1m","suspend":false}}` {
		t.Errorf("what its owner resumed is %s", got)
	}
	if of, err := Holder(t.Context(), c); of != "" || err != nil {
		t.Errorf("still suspended by %q, %v", of, err)
	}
}
