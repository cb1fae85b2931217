package rehearsal

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

const (
	// atOnce is how many objects are made at once.
	atOnce = 32
	// readyWithin is how long definitions and ranges may take to be ready.
	readyWithin = 2 * time.Minute
	// shownRefusals bounds how many objects that could not be made are named.
	shownRefusals = 20
)

// restorer makes the objects of a snapshot.
type restorer struct {
	client dynamic.Interface
	store  *store
	say    func(format string, args ...any)

	mu sync.Mutex
	// uids are those that objects have now, by those that they had.
	uids    map[types.UID]types.UID
	made    int
	refused []Refused
	lacking int
}

// Refused is an object that could not be made as it was.
type Refused struct {
	Object string `json:"object"`
	Error  string `json:"error"`
}

func newRestorer(config *rest.Config, s *store, say func(format string, args ...any)) (*restorer, error) {
	config = rest.CopyConfig(config)
	config.QPS = -1 // the API server is our own
	config.WarningHandler = rest.NoWarnings{}
	config.Timeout = time.Minute
	c, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &restorer{client: c, store: s, say: say, uids: map[types.UID]types.UID{}}, nil
}

// restore makes everything. What the API server refuses is counted, and does not stop it.
func (r *restorer) restore(ctx context.Context, in *inventory) error {
	for _, group := range in.groups() {
		var direct, created []*object
		for _, o := range group {
			if o.direct() {
				r.own(o)
				direct = append(direct, o)
			} else {
				created = append(created, o)
			}
		}
		r.store.put(ctx, direct, r.keep)
		r.create(ctx, created, len(in.objects))
		if err := ctx.Err(); err != nil {
			return err
		}
		if group[0].stage == early {
			if err := r.ready(ctx, group); err != nil {
				return err
			}
		}
	}
	return nil
}

// create makes objects by the API server. of is how many there are of all.
func (r *restorer) create(ctx context.Context, objects []*object, of int) {
	var eg errgroup.Group
	eg.SetLimit(atOnce)
	said := time.Now()
	for _, o := range objects {
		if ctx.Err() != nil {
			break
		}
		eg.Go(func() error {
			r.keep(o, r.make(ctx, o))
			return nil
		})
		if time.Since(said) > 15*time.Second {
			said = time.Now()
			r.say("%d of %d objects are made", r.count(), of)
		}
	}
	_ = eg.Wait() // errors are kept
}

func (r *restorer) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.made
}

func (r *restorer) keep(o *object, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		if uid := o.GetUID(); uid != "" {
			r.uids[uid] = uid
		}
		r.made++
		return
	}
	r.lacking++
	if len(r.refused) < shownRefusals {
		r.refused = append(r.refused, Refused{Object: o.String(), Error: err.Error()})
	}
}

func (r *restorer) of(o *object) dynamic.ResourceInterface {
	return r.client.Resource(o.GroupVersionResource).Namespace(o.GetNamespace())
}

// make creates an object, and gives it its status.
func (r *restorer) make(ctx context.Context, o *object) error {
	was := o.GetUID()
	status, _, _ := unstructured.NestedFieldNoCopy(o.Object, "status")
	r.own(o)
	unstructured.RemoveNestedField(o.Object, "metadata", "uid")
	made, err := r.of(o).Create(ctx, o.Unstructured, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) { // the API server was first
		return r.adjust(ctx, o)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.uids[was] = made.GetUID()
	r.mu.Unlock()
	if !substantial(status) {
		return nil
	}
	made.Object["status"] = status
	_, err = r.of(o).UpdateStatus(ctx, made, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) { // it has no such subresource, and was made with its status
		return nil
	}
	if err != nil {
		return fmt.Errorf("its status: %w", err)
	}
	return nil
}

// own has an object name its owners as they are now. Those that are not there go.
func (r *restorer) own(o *object) {
	refs := o.GetOwnerReferences()
	if len(refs) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var now []metav1.OwnerReference
	for _, ref := range refs {
		if uid := r.uids[ref.UID]; uid != "" {
			ref.UID = uid
			now = append(now, ref)
		}
	}
	o.SetOwnerReferences(now)
}

// adjust gives the labels and annotations of the snapshot to a namespace that was there before. Other objects stay as the API server made them.
func (r *restorer) adjust(ctx context.Context, o *object) error {
	if o.Resource != "namespaces" {
		return nil
	}
	have, err := r.of(o).Get(ctx, o.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	have.SetLabels(o.GetLabels())
	have.SetAnnotations(o.GetAnnotations())
	_, err = r.of(o).Update(ctx, have, metav1.UpdateOptions{})
	return err
}

// ready waits until definitions are established and ranges are given addresses of.
func (r *restorer) ready(ctx context.Context, group []*object) error {
	for resource, condition := range map[schema.GroupVersionResource]string{
		{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}: "Established",
		{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"}:                 "Ready",
	} {
		wanted := map[string]bool{}
		for _, o := range group {
			if o.GroupVersionResource == resource {
				wanted[o.GetName()] = true
			}
		}
		if len(wanted) == 0 {
			continue
		}
		if err := r.await(ctx, resource, condition, wanted); err != nil {
			return err
		}
	}
	return nil
}

func (r *restorer) await(ctx context.Context, of schema.GroupVersionResource, condition string, wanted map[string]bool) error {
	var behind []string
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, readyWithin, true, func(ctx context.Context) (bool, error) {
		all, err := r.client.Resource(of).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, nil //nolint:nilerr // the next look may succeed
		}
		behind = nil
		for i := range all.Items {
			if o := &all.Items[i]; wanted[o.GetName()] && !holds(o, condition) {
				behind = append(behind, o.GetName())
			}
		}
		return len(behind) == 0, nil
	})
	if err != nil {
		return errors.Join(fmt.Errorf("%s %v did not become %s: %w", of.Resource, behind, condition, err), ctx.Err())
	}
	return nil
}

func holds(o *unstructured.Unstructured, condition string) bool {
	all, _, _ := unstructured.NestedSlice(o.Object, "status", "conditions")
	for _, c := range all {
		if c, is := c.(map[string]any); is && c["type"] == condition {
			return c["status"] == "True"
		}
	}
	return false
}
