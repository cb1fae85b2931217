package mirror

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/dnsrecords"
	"github.com/replumb/replumb/internal/spec"
)

// Deps are what steps work with. Their Cluster is the source: the one that the Migration is in.
type Deps struct {
	migration.Deps
	// DNS asks name servers. The default asks those that the machine knows.
	DNS     *dnsrecords.Client
	Context func(name string) (*rest.Config, error)
	// InsecureTarget takes a Secret's kubeconfig as it is: it may run programs and read files.
	InsecureTarget bool
}

// TargetError says that the other cluster cannot be used.
type TargetError struct {
	Problem string
	Hint    string
	Err     error
}

func (e *TargetError) Error() string { return "the target " + e.Problem }

func (e *TargetError) Advice() string { return e.Hint }

func (e *TargetError) Unwrap() error { return e.Err }

// AnotherTargetError says that the target is not the recorded cluster.
type AnotherTargetError struct {
	Name, Recorded, Now string
}

func (e *AnotherTargetError) Error() string {
	return fmt.Sprintf(
		"the target of migration %s was the cluster with UID %s, and spec.mirror.target leads to one with UID %s now",
		e.Name,
		e.Recorded,
		e.Now,
	)
}

func (*AnotherTargetError) Advice() string {
	return "nothing was changed or sent; see who has changed the kubeconfig of the target. A mirror in another cluster is another Migration"
}

func (*AnotherTargetError) ExitCode() int { return fault.ExitBlocked }

type side struct {
	*cluster.Cluster
	// uid is that of the namespace kube-system, which lasts as long as the cluster.
	uid string
}

func (t Deps) open(ctx context.Context, ref v1alpha1.ClusterReference) (*side, error) {
	config, err := t.access(ctx, ref)
	if err != nil {
		return nil, err
	}
	c, err := cluster.Connect(config)
	if err != nil {
		return nil, &TargetError{Problem: "cannot be connected to: " + err.Error(), Hint: "see " + root + ".target", Err: err}
	}
	if _, err := c.ServerVersion(ctx); err != nil {
		return nil, &TargetError{
			Problem: "does not answer: " + err.Error(),
			Hint: "see that it is reached from where replumb runs: kubectl get --raw /version; if it is gone for good, replumb rollback " +
				"and replumb finish lead names back without it: --without-target",
			Err: err,
		}
	}
	uid, err := identity(ctx, c)
	return &side{Cluster: c, uid: uid}, err
}

func (t Deps) source(ctx context.Context) (*side, error) {
	uid, err := identity(ctx, t.Cluster)
	return &side{Cluster: t.Cluster, uid: uid}, err
}

func identity(ctx context.Context, c client.Client) (string, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return "", fmt.Errorf("namespace %s: %w", metav1.NamespaceSystem, err)
	}
	return string(ns.UID), nil
}

func (t Deps) access(ctx context.Context, ref v1alpha1.ClusterReference) (*rest.Config, error) {
	if ref.Context != "" {
		if t.Context == nil {
			return nil, &spec.Error{
				Field: root + ".target.context", Problem: "needs a kubeconfig, and there is none", Hint: "name a Secret instead",
			}
		}
		config, err := t.Context(ref.Context)
		if err != nil {
			return nil, &spec.Error{
				Field:   root + ".target.context",
				Problem: fmt.Sprintf("%s: %v", ref.Context, err),
				Hint:    "kubectl config get-contexts lists them",
			}
		}
		return config, nil
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: ref.Secret.Namespace, Name: ref.Secret.Name}
	if err := t.Cluster.Get(ctx, key, secret); err != nil {
		return nil, &TargetError{
			Problem: "has its kubeconfig in secret " + key.String() + ": " + err.Error(),
			Hint:    "see " + root + ".target.secret", Err: err,
		}
	}
	body, err := kubeconfigOf(secret, ref.Secret.Key)
	if err != nil {
		return nil, &TargetError{
			Problem: "has its kubeconfig in secret " + key.String() + ": " + err.Error(),
			Hint:    "see " + root + ".target.secret.key",
		}
	}
	return t.trusted(body, key.String())
}

func (t Deps) trusted(body []byte, secret string) (*rest.Config, error) {
	if t.InsecureTarget {
		config, err := clientcmd.RESTConfigFromKubeConfig(body)
		if err != nil { // what is wrong with it may quote it
			return nil, &KubeconfigError{Secret: secret, Problem: "it cannot be read"}
		}
		return config, nil
	}
	config, bad := reduced(body)
	if bad != nil {
		bad.Secret = secret
		return nil, bad
	}
	return config, nil
}

func kubeconfigOf(secret *corev1.Secret, key string) ([]byte, error) {
	keys := []string{key}
	if key == "" {
		keys = []string{"value", "kubeconfig"} // as Cluster API and Flux write it
	}
	for _, k := range keys {
		if body := secret.Data[k]; len(body) > 0 {
			return body, nil
		}
	}
	if key != "" {
		return nil, fmt.Errorf("it has no key %s", key)
	}
	return nil, errors.New("it has neither a key value nor kubeconfig")
}

// read lists all objects of kinds, given as resource.group. Kinds that are not served have none.
func (s *side) read(ctx context.Context, kinds []string) ([]unstructured.Unstructured, error) {
	served, err := s.resources()
	if err != nil {
		return nil, err
	}
	objects, err := dynamic.NewForConfig(s.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	var all []unstructured.Unstructured
	for _, gvr := range served {
		if !slices.Contains(kinds, gvr.GroupResource().String()) {
			continue
		}
		list := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return objects.Resource(gvr).List(ctx, o)
		})
		err := list.EachListItem(ctx, metav1.ListOptions{}, func(o runtime.Object) error {
			all = append(all, *o.(*unstructured.Unstructured))
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("listing %s: %w", gvr.GroupResource(), err)
		}
	}
	return all, nil
}

func (s *side) served() (out []schema.GroupResource, err error) {
	gvrs, err := s.discover(discovery.DiscoveryInterface.ServerPreferredNamespacedResources, discovery.ResourcePredicateFunc(
		func(string, *metav1.APIResource) bool { return true }))
	for _, gvr := range gvrs {
		out = append(out, gvr.GroupResource())
	}
	return out, err
}

func (s *side) resources() ([]schema.GroupVersionResource, error) {
	return s.discover(discovery.DiscoveryInterface.ServerPreferredResources, discovery.SupportsAllVerbs{Verbs: []string{"list"}})
}

func (s *side) discover(
	ask func(discovery.DiscoveryInterface) ([]*metav1.APIResourceList, error), of discovery.ResourcePredicate,
) ([]schema.GroupVersionResource, error) {
	asking, err := discovery.NewDiscoveryClientForConfig(s.RESTConfig())
	if err != nil {
		return nil, fmt.Errorf("creating a client: %w", err)
	}
	lists, err := ask(asking)
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, fmt.Errorf("asking %s what it serves: %w", s.Host(), err)
	}
	gvrs, err := discovery.GroupVersionResources(discovery.FilteredBy(of, lists))
	if err != nil {
		return nil, fmt.Errorf("asking %s what it serves: %w", s.Host(), err)
	}
	return slices.SortedFunc(maps.Keys(gvrs), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	}), nil
}
