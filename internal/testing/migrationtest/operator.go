package migrationtest

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// Operator is a cluster as a user sees it who has some roles, and nothing beside them but to make
// and remove replumb's namespace, which the files in deploy make else. The test fails, when it
// ends, for every request that was denied, but for the list of Secrets with backups: migrations
// that change no Secrets do without.
func Operator(t testing.TB, s *apitest.Server, roles access.Roles) (*cluster.Cluster, *Requests) {
	t.Helper()
	founder := access.Role{Name: "founder", Rules: []access.Rule{{Rights: append(
		access.Grant("", "namespaces", "", "create"),
		access.Named(access.Grant("", "namespaces", "", "delete"), v1alpha1.SystemNamespace)...,
	)}}}
	c, seen := user(t, s, "operator", append(roles.Of(access.Purposes()...), founder))
	t.Cleanup(func() {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		delete(seen.denied, "list secrets in "+v1alpha1.SystemNamespace)
		for r := range seen.denied {
			t.Errorf("%s was denied", r)
		}
	})
	return c, seen
}

// Reader is a cluster as a user sees it who has the roles to view, and nothing beside them. The
// test fails, when it ends, for every request that would have changed something.
func Reader(t testing.TB, s *apitest.Server, roles access.Roles) *cluster.Cluster {
	t.Helper()
	c, seen := user(t, s, "reader", roles.Of(access.View))
	t.Cleanup(func() {
		seen.mu.Lock()
		defer seen.mu.Unlock()
		for r := range seen.taken {
			if !slices.Contains([]string{"get", "list", "watch"}, r.Verb) && r.Resource != "selfsubjectaccessreviews" {
				t.Errorf("a reader could %s", r)
			}
		}
	})
	return c
}

// user is a cluster as a user sees it who has some roles.
func user(t testing.TB, s *apitest.Server, name string, roles access.Roles) (*cluster.Cluster, *Requests) {
	t.Helper()
	manifests := rbac.Namespaces()
	for _, role := range roles {
		manifests += rbac.Manifest(role) + rbac.Bindings(role, rbacv1.Subject{Kind: rbacv1.UserKind, Name: name})
	}
	create(t, s, manifests)
	// The namespace goes, as it is not there before a first run; no controller is here that would
	// take the roles in it along.
	gone(t, s, v1alpha1.SystemNamespace)
	config := rest.CopyConfig(s.Config)
	config.Impersonate = rest.ImpersonationConfig{UserName: name}
	seen := &Requests{taken: map[access.Right]bool{}, denied: map[string]bool{}}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &recorder{next: next, seen: seen, user: name} })
	c, err := cluster.Connect(config)
	if err != nil {
		t.Fatal(err)
	}
	return c, seen
}

// create makes the objects of a YAML file, and takes those for good that are there.
func create(t testing.TB, s *apitest.Server, manifests string) {
	t.Helper()
	everything, err := s.Any()
	if err != nil {
		t.Fatal(err)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		o := &unstructured.Unstructured{}
		if decoder.Decode(&o.Object) != nil {
			return
		}
		if o.Object == nil {
			continue
		}
		if err := everything.Create(context.Background(), o); client.IgnoreAlreadyExists(err) != nil {
			t.Fatal(err)
		}
	}
}

// gone removes a namespace, and waits until it is.
func gone(t testing.TB, s *apitest.Server, name string) {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
	err := wait.PollUntilContextTimeout(context.Background(), 20*time.Millisecond, Patience, true, func(ctx context.Context) (bool, error) {
		return apierrors.IsNotFound(s.Delete(ctx, ns)), nil
	})
	if err != nil {
		t.Fatalf("namespace %s stays: %v", name, err)
	}
}
