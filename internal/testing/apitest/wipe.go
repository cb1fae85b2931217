package apitest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"
)

// contents is everything an API server holds: the names of its resources, and their objects by
// resource, namespace and name.
type contents struct {
	Resources []string
	Objects   map[string]entry
}

type entry struct {
	Resource schema.GroupVersionResource
	Object   *unstructured.Unstructured
}

// wipeTime is how long Wipe tries: a namespace, a definition and a freeze each take a moment to go.
const wipeTime = time.Minute

// Wipe brings the API server back to what it held when it was new: what was made since goes, what
// was changed or deleted is put back. On a Server that Run has started, the first call only takes
// note of what there is.
func (s *Server) Wipe(ctx context.Context) error {
	lister, err := newLister(s)
	if err != nil {
		return err
	}
	if s.fresh == nil {
		s.fresh, err = lister.contents(ctx)
		return err
	}
	var last error
	err = wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, wipeTime, true, func(ctx context.Context) (bool, error) {
		err := lister.wipe(ctx, s.fresh)
		if ctx.Err() == nil { // what fails once the time is over tells nothing
			last = err
		}
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wiping the API server: %w", errors.Join(err, last))
	}
	return nil
}

// wipe takes one step towards what was there before, and returns an error as long as there is
// another.
func (l *lister) wipe(ctx context.Context, before *contents) error {
	now, err := l.contents(ctx)
	if err != nil {
		return err
	}
	return l.restore(ctx, before, now)
}

// lister reads and writes objects of all kinds.
type lister struct {
	discovery discovery.DiscoveryInterface
	client    dynamic.Interface
}

func newLister(s *Server) (*lister, error) {
	d, err := discovery.NewDiscoveryClientForConfig(s.Config)
	if err != nil {
		return nil, err
	}
	c, err := dynamic.NewForConfig(s.Config)
	return &lister{discovery: d, client: c}, err
}

// contents leaves out what API servers, and they alone, keep writing.
func (l *lister) contents(ctx context.Context) (*contents, error) {
	all, err := discovery.ServerPreferredResources(l.discovery)
	if err != nil {
		return nil, err // a definition that just went is still announced; the next look finds it gone
	}
	c := &contents{Objects: map[string]entry{}}
	for _, group := range all {
		version, err := schema.ParseGroupVersion(group.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range group.APIResources {
			if !slices.Contains(r.Verbs, "list") || !slices.Contains(r.Verbs, "delete") {
				continue
			}
			if err := l.list(ctx, version.WithResource(r.Name), c); err != nil {
				return nil, err
			}
		}
	}
	slices.Sort(c.Resources)
	return c, nil
}

func (l *lister) list(ctx context.Context, r schema.GroupVersionResource, c *contents) error {
	list, err := l.client.Resource(r).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing %s: %w", r.Resource, err)
	}
	c.Resources = append(c.Resources, r.String())
	for i := range list.Items {
		if o := &list.Items[i]; !ofTheServer(r, o) {
			c.Objects[r.GroupResource().String()+" "+o.GetNamespace()+"/"+o.GetName()] = entry{Resource: r, Object: o}
		}
	}
	return nil
}

// ofTheServer reports whether only API servers write an object, at times of their own.
func ofTheServer(r schema.GroupVersionResource, o *unstructured.Unstructured) bool {
	switch r.Resource {
	case "leases":
		return o.GetNamespace() == metav1.NamespaceSystem && strings.HasPrefix(o.GetName(), "apiserver-")
	case "endpoints", "endpointslices":
		return o.GetNamespace() == metav1.NamespaceDefault && o.GetName() == "kubernetes"
	case "apiservices":
		_, automatic := o.GetLabels()["kube-aggregator.kubernetes.io/automanaged"]
		return automatic
	case "configmaps":
		return o.GetNamespace() == metav1.NamespaceSystem && o.GetName() == "extension-apiserver-authentication"
	}
	return false
}

// restore returns an error as long as there is a difference.
func (l *lister) restore(ctx context.Context, want, have *contents) error {
	var errs []error
	differ := func(key string, err error) {
		if len(errs) < 10 { // a test may leave thousands of objects
			errs = append(errs, fmt.Errorf("%s differs: %w", key, err))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(have.Objects)) {
		if _, stays := want.Objects[key]; !stays {
			differ(key, l.remove(ctx, have.Objects[key]))
		}
	}
	for _, key := range slices.Sorted(maps.Keys(want.Objects)) {
		if is, there := have.Objects[key]; !there ||
			!equality.Semantic.DeepEqual(bare(is.Object).Object, bare(want.Objects[key].Object).Object) {
			differ(key, l.putBack(ctx, want.Objects[key], is.Object))
		}
	}
	if len(errs) == 0 && !slices.Equal(want.Resources, have.Resources) {
		return errors.New("definitions that are gone are still announced")
	}
	return errors.Join(errs...)
}

// errUnderWay means that the next look shows whether it worked.
var errUnderWay = errors.New("under way")

// remove deletes an object, whatever still waits for it. What namespaces, definitions and ranges
// wait for is the business of controllers.
func (l *lister) remove(ctx context.Context, e entry) error {
	c := l.client.Resource(e.Resource).Namespace(e.Object.GetNamespace())
	own := slices.Contains([]string{"namespaces", "customresourcedefinitions", "servicecidrs"}, e.Resource.Resource)
	if len(e.Object.GetFinalizers()) > 0 && !own {
		body := []byte(`{"metadata":{"finalizers":null}}`)
		if _, err := c.Patch(
			ctx,
			e.Object.GetName(),
			types.MergePatchType,
			body,
			metav1.PatchOptions{},
		); err != nil &&
			!apierrors.IsNotFound(err) {
			return err
		}
	}
	err := c.Delete(ctx, e.Object.GetName(), metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), PropagationPolicy: ptr.To(metav1.DeletePropagationBackground),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return errUnderWay
}

// putBack makes an object that was deleted, or undoes a change.
func (l *lister) putBack(ctx context.Context, want entry, is *unstructured.Unstructured) error {
	c := l.client.Resource(want.Resource).Namespace(want.Object.GetNamespace())
	o := bare(want.Object)
	var err error
	if is == nil {
		_, err = c.Create(ctx, o, metav1.CreateOptions{})
	} else {
		o.SetResourceVersion(is.GetResourceVersion())
		_, err = c.Update(ctx, o, metav1.UpdateOptions{})
	}
	if err != nil {
		return err
	}
	return errUnderWay
}

// bare is an object without what the API server and controllers note on it.
func bare(o *unstructured.Unstructured) *unstructured.Unstructured {
	o = o.DeepCopy()
	delete(o.Object, "status")
	for _, field := range []string{"resourceVersion", "generation", "managedFields", "uid", "creationTimestamp", "finalizers"} {
		unstructured.RemoveNestedField(o.Object, "metadata", field)
	}
	return o
}
