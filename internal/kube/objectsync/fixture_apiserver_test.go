//go:build apiserver && long

package objectsync_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
	"github.com/replumb/replumb/internal/kube/objectsync/objecttest"
	"github.com/replumb/replumb/internal/kube/objectsync/runonce"
	"github.com/replumb/replumb/internal/testing/apitest"
)

var (
	sourceServer = &apitest.Lazy{Range: "10.96.0.0/16", Options: []apitest.Option{apitest.WithoutEndpoints()}}
	targetServer = &apitest.Lazy{Range: "10.97.0.0/16", Options: []apitest.Option{apitest.WithoutEndpoints()}}
)

func TestMain(m *testing.M) {
	os.Exit(apitest.Main(m, sourceServer, targetServer))
}

// fixture is two clusters, with the namespaces of one test in each.
type fixture struct {
	*testing.T

	source, target *objectsync.Side
	// shop and vault are namespaces that no other test has.
	shop, vault string
}

func setup(t *testing.T) *fixture {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	f := &fixture{T: t, shop: name + "-shop", vault: name + "-vault"}
	var err error
	if f.source, err = objectsync.Connect(sourceServer.Get(t).Cluster); err != nil {
		t.Fatal(err)
	}
	if f.target, err = objectsync.Connect(targetServer.Get(t).Cluster); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{f.shop, f.vault} {
		f.make(f.source, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+ns+"}")
		t.Cleanup(func() { f.remove(f.source, objecttest.KindOf("v1", "Namespace"), "", ns) })
		t.Cleanup(func() { f.remove(f.target, objecttest.KindOf("v1", "Namespace"), "", ns) })
	}
	return f
}

// make creates what is in manifests, in which SHOP and VAULT stand for the test's namespaces.
func (f *fixture) make(s *objectsync.Side, manifests string) {
	f.Helper()
	manifests = strings.NewReplacer("SHOP", f.shop, "VAULT", f.vault).Replace(manifests)
	for _, text := range strings.Split(manifests, "\n---\n") {
		o := objecttest.Parse(f, text)
		k := objecttest.KindOf(o.GetAPIVersion(), o.GetKind())
		resource := s.Objects().Resource(k.GVR())
		var err error
		if k.Namespaced {
			_, err = resource.Namespace(o.GetNamespace()).Create(context.Background(), o, metav1.CreateOptions{FieldManager: "someone"})
		} else {
			_, err = resource.Create(context.Background(), o, metav1.CreateOptions{FieldManager: "someone"})
		}
		if err != nil {
			f.Fatal(err)
		}
	}
}

func (f *fixture) remove(s *objectsync.Side, k objects.ResourceKind, namespace, name string) {
	f.Helper()
	err := s.MetaOf(k, namespace).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if err != nil && !apierrors.IsNotFound(err) {
		f.Error(err)
	}
}

func (f *fixture) get(s *objectsync.Side, k objects.ResourceKind, namespace, name string) *unstructured.Unstructured {
	f.Helper()
	o, err := s.Read(context.Background(), k, objects.Key{Namespace: namespace, Name: name})
	if err != nil {
		f.Fatal(err)
	}
	return o
}

func (f *fixture) gone(s *objectsync.Side, k objects.ResourceKind, namespace, name string) {
	f.Helper()
	if _, err := s.Read(context.Background(), k, objects.Key{Namespace: namespace, Name: name}); !apierrors.IsNotFound(err) {
		f.Errorf("%s %s/%s is there: %v", k, namespace, name, err)
	}
}

func (f *fixture) change(s *objectsync.Side, k objects.ResourceKind, namespace, name string, change func(*unstructured.Unstructured)) {
	f.Helper()
	o := f.get(s, k, namespace, name)
	change(o)
	if _, err := s.Objects().Resource(k.GVR()).
		Namespace(namespace).
		Update(context.Background(), o, metav1.UpdateOptions{FieldManager: "someone"}); err != nil {
		f.Fatal(err)
	}
}

// copier copies what is in the test's namespaces, and what is in none only if others cannot be in
// the way.
func (f *fixture) copier(change func(*copyrules.Options)) *objectsync.Copier {
	f.Helper()
	o := copyrules.Options{Migration: "m", Copy: v1alpha1.CopySpec{Namespaces: v1alpha1.NameFilter{Include: []string{f.shop, f.vault}}}}
	if change != nil {
		change(&o)
	}
	r, err := copyrules.New(o)
	if err != nil {
		f.Fatal(err)
	}
	return &objectsync.Copier{Source: f.source, Target: f.target, Rules: r, Patience: 1}
}

func singletons(c *objectsync.Copier, s *objectsync.Side) runonce.Workloads {
	return runonce.Workloads{Rules: c.Rules, Side: s}
}

func (f *fixture) run(c *objectsync.Copier) objectsync.Result {
	f.Helper()
	result, err := c.Run(context.Background(), copyrules.All)
	if err != nil {
		f.Fatal(err)
	}
	return result
}

// clean is run for copies that nothing must go wrong with.
func (f *fixture) clean(c *objectsync.Copier) objectsync.Result {
	f.Helper()
	result := f.run(c)
	for _, e := range result.Errors {
		f.Errorf("%v (%s)", e, e.Hint)
	}
	return result
}

func (f *fixture) differences(c *objectsync.Copier) []string {
	f.Helper()
	p, err := c.Compare(context.Background())
	if err != nil {
		f.Fatal(err)
	}
	var all []string
	for _, d := range p.Differences {
		all = append(all, fmt.Sprint(d))
	}
	return all
}
