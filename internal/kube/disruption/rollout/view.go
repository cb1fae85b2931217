package rollout

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// view is what drains know of pods and budgets, from one watch of each.
type view struct {
	pods, budgets *index
	cancel        context.CancelFunc
}

const byNode, byOwner = "node", "owner"

func newView(pod func(*corev1.Pod), released func(*budget)) *view {
	return &view{
		pods: newIndex("pods", cache.Indexers{byNode: nodeOf, byOwner: ownerOf}, followed, func(o any) { pod(o.(*corev1.Pod)) }),
		budgets: newIndex(
			"poddisruptionbudgets",
			cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
			budgetOf,
			func(o any) {
				if b := o.(*budget); b.allowed > 0 {
					released(b)
				}
			},
		),
	}
}

func (v *view) start(ctx context.Context, c client.WithWatch) {
	ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	ctx = klog.NewContext(ctx, klog.Logger{}) // stderr is for people, and what goes wrong a drain says
	go v.pods.follow(ctx, c, &corev1.Pod{}, func() client.ObjectList { return &corev1.PodList{} })
	go v.budgets.follow(ctx, c, &policyv1.PodDisruptionBudget{}, func() client.ObjectList { return &policyv1.PodDisruptionBudgetList{} })
}

func (v *view) stop() { v.cancel() }

func (v *view) complete(ctx context.Context) error {
	patience := time.NewTimer(quiet)
	defer patience.Stop()
	for _, i := range []*index{v.pods, v.budgets} {
		select {
		case <-i.listed:
		case <-ctx.Done():
			return engine.NotYet("%s have not been listed", i.what)
		case <-patience.C:
			return engine.NotYet("watching %s: %w", i.what, i.trouble())
		}
	}
	return nil
}

func (v *view) on(node string) []*corev1.Pod { return v.list(byNode, node) }

func (v *view) ownedBy(owner types.UID) []*corev1.Pod { return v.list(byOwner, string(owner)) }

func (v *view) list(by, what string) []*corev1.Pod {
	all, _ := v.pods.ByIndex(by, what) // there is no such index: that cannot be
	pods := make([]*corev1.Pod, 0, len(all))
	for _, o := range all {
		pods = append(pods, o.(*corev1.Pod))
	}
	return pods
}

// count how many pods of an owner are ready but for some, and for how many there is no node.
func (v *view) count(owner types.UID, but map[types.UID]bool) (ready, stuck int) {
	for _, p := range v.ownedBy(owner) {
		switch {
		case ended(p) || but[p.UID]:
		case podReady(p):
			ready++
		case unschedulable(p):
			stuck++
		}
	}
	return ready, stuck
}

// holding is a budget that lets no pod like this one go at present; nothing, if there is none.
func (v *view) holding(p *corev1.Pod) string {
	all, _ := v.budgets.ByIndex(cache.NamespaceIndex, p.Namespace)
	for _, o := range all {
		if b := o.(*budget); b.allowed < 1 && b.covers(p.Namespace, p.Labels) {
			return b.Name
		}
	}
	return ""
}

// budget is what matters of a PodDisruptionBudget.
type budget struct {
	metav1.ObjectMeta

	selector labels.Selector
	allowed  int32
}

func (b *budget) covers(namespace string, of map[string]string) bool {
	return b.Namespace == namespace && b.selector.Matches(labels.Set(of))
}

func budgetOf(o any) any {
	b, ok := o.(*policyv1.PodDisruptionBudget)
	if !ok {
		return o
	}
	selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
	if err != nil {
		selector = labels.Nothing()
	}
	return &budget{ObjectMeta: slimMeta(&b.ObjectMeta), selector: selector, allowed: b.Status.DisruptionsAllowed}
}

func followed(o any) any {
	p, ok := o.(*corev1.Pod)
	if !ok {
		return o
	}
	slim := slimPod(p)
	slim.Spec.Tolerations = p.Spec.Tolerations
	return &slim
}

func nodeOf(o any) ([]string, error) { return []string{o.(*corev1.Pod).Spec.NodeName}, nil }

func ownerOf(o any) ([]string, error) {
	if ref := metav1.GetControllerOfNoCopy(o.(*corev1.Pod)); ref != nil {
		return []string{string(ref.UID)}, nil
	}
	return nil, nil
}

// index keeps objects of a kind, and tells of each that changes.
type index struct {
	cache.Indexer

	what string
	slim func(any) any
	news func(any)
	// listed is closed when all have been seen.
	listed chan struct{}
	once   sync.Once

	mu      sync.Mutex
	problem error
}

var _ cache.ReflectorStore = (*index)(nil)

func newIndex(what string, by cache.Indexers, slim func(any) any, news func(any)) *index {
	return &index{
		Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, by), what: what, slim: slim, news: news, listed: make(chan struct{}),
	}
}

// follow keeps up with all objects of a kind until ctx ends.
func (i *index) follow(ctx context.Context, c client.WithWatch, example client.Object, newList func() client.ObjectList) {
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list := newList()
			return list, i.note(c.List(ctx, list, &client.ListOptions{Limit: o.Limit, Continue: o.Continue, Raw: &o}))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			w, err := c.Watch(ctx, newList(), &client.ListOptions{Raw: &o})
			return w, i.note(err)
		},
	}
	// The default backoff grows to half a minute, too long in the middle of a drain.
	pauses := &wait.Backoff{Duration: pause, Factor: 1.5, Jitter: 0.5, Cap: 3 * time.Second, Steps: 5}
	cache.NewReflectorWithOptions(source, example, i, cache.ReflectorOptions{Name: i.what, Backoff: pauses}).RunWithContext(ctx)
}

func (i *index) note(err error) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.problem = err
	return err
}

func (i *index) trouble() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.problem != nil {
		return i.problem
	}
	return fmt.Errorf("they have not been listed after %s", quiet)
}

func (i *index) Add(o any) error { return i.Update(o) }

func (i *index) Update(o any) error {
	o = i.slim(o)
	err := i.Indexer.Update(o)
	i.news(o)
	return err
}

func (i *index) Delete(o any) error {
	o = i.slim(o)
	err := i.Indexer.Delete(o)
	i.news(o)
	return err
}

func (i *index) Replace(all []any, version string) error {
	slim := make([]any, 0, len(all))
	for _, o := range all {
		slim = append(slim, i.slim(o))
	}
	err := i.Indexer.Replace(slim, version)
	for _, o := range slim {
		i.news(o)
	}
	i.once.Do(func() { close(i.listed) })
	return err
}
