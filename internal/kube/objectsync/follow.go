package objectsync

import (
	"context"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	toolswatch "k8s.io/client-go/tools/watch"
	"k8s.io/client-go/util/workqueue"

	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// item is an object that has changed in the source; one without a name is all of its kind.
type item struct {
	kind objects.ResourceKind
	objects.Key
}

type change struct {
	since time.Time
	// times it was seen to change. A copy made before the last of them is not the end.
	times int
}

// Follower copies each change of the source as it happens.
type Follower struct {
	copier *Copier
	queue  workqueue.TypedRateLimitingInterface[item]

	mu sync.Mutex
	// started once the first copy is done and every kind is watched.
	started bool
	watched map[objects.ResourceKind]bool
	// pending are changes that are not in the target yet, and what keeps those that were tried.
	pending  map[item]*change
	troubles map[item]*ObjectError
	// again asks for another look at what the source serves.
	again chan struct{}
}

// NewFollower makes a Follower of a Copier, which meanwhile serves nothing else but Compare.
func NewFollower(c *Copier) *Follower {
	const soonest, latest = 200 * time.Millisecond, 15 * time.Second
	return &Follower{
		copier: c,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[item](soonest, latest)),
		watched: map[objects.ResourceKind]bool{}, pending: map[item]*change{}, troubles: map[item]*ObjectError{}, again: make(chan struct{}, 1),
	}
}

// Run copies everything once, then each change, until the context ends. Failed copies are retried.
func (f *Follower) Run(ctx context.Context) error {
	var all sync.WaitGroup
	defer all.Wait()
	defer f.queue.ShutDown()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for range f.copier.Rules.Parallel() {
		all.Go(func() { f.work(ctx) })
	}
	const again = time.Minute // for kinds that come without an event of their definition: from aggregated servers, say
	tick := time.NewTicker(again)
	defer tick.Stop()
	for {
		if err := f.watchNew(ctx, &all); err != nil && ctx.Err() == nil && !f.isStarted() {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-f.again:
		}
	}
}

func (f *Follower) isStarted() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started
}

// watchNew watches new kinds. The watch begins before the copy, so that nothing is missed.
func (f *Follower) watchNew(ctx context.Context, all *sync.WaitGroup) error {
	kinds, err := FindKinds(ctx, f.copier.Source, f.copier.Target, f.copier.Rules)
	if err != nil {
		return err
	}
	type beginning struct {
		kind    objects.ResourceKind
		version string
	}
	var begun []beginning
	for _, k := range kinds.Copied {
		f.mu.Lock()
		known := f.watched[k]
		f.mu.Unlock()
		if known {
			continue
		}
		version, err := f.version(ctx, k)
		if err != nil {
			return fmt.Errorf("reading %s of the source: %w", k, err)
		}
		begun = append(begun, beginning{k, version})
	}
	for _, b := range begun {
		if err := f.copyAll(ctx, b.kind); err != nil {
			return err
		}
		f.mu.Lock()
		f.watched[b.kind] = true
		f.mu.Unlock()
		all.Go(func() { f.follow(ctx, b.kind, b.version) })
	}
	f.mu.Lock()
	f.started = true
	f.mu.Unlock()
	return nil
}

func (f *Follower) version(ctx context.Context, k objects.ResourceKind) (string, error) {
	list, err := f.copier.Source.meta.Resource(k.GVR()).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	return list.ResourceVersion, nil
}

func (f *Follower) copyAll(ctx context.Context, k objects.ResourceKind) error {
	f.copier.result, f.copier.hasty = Result{}, true
	defer func() { f.copier.hasty = false }()
	if err := f.copier.kind(ctx, k); err != nil {
		return err
	}
	for _, e := range f.copier.result.Errors {
		i := item{k, e.Ref.Key()}
		f.mark(i)
		f.record(i, e)
		f.queue.AddRateLimited(i)
	}
	return nil
}

// follow queues what changes, until the context ends or the kind is no longer served.
func (f *Follower) follow(ctx context.Context, k objects.ResourceKind, version string) {
	for ctx.Err() == nil {
		f.watch(ctx, k, version)
		if ctx.Err() != nil {
			return
		}
		// The source has forgotten what changed since: the workers look at everything.
		const pause = time.Second
		if wait(ctx, pause) != nil {
			return
		}
		next, err := f.version(ctx, k)
		if apierrors.IsNotFound(err) {
			f.mu.Lock()
			delete(f.watched, k)
			f.mu.Unlock()
			return
		}
		if err != nil {
			continue
		}
		version = next
		f.enqueue(item{kind: k})
	}
}

func (f *Follower) watch(ctx context.Context, k objects.ResourceKind, version string) {
	w, err := toolswatch.NewRetryWatcherWithContext(ctx, version, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.AllowWatchBookmarks = true
			return f.copier.Source.meta.Resource(k.GVR()).Watch(ctx, o)
		},
	})
	if err != nil {
		return
	}
	defer w.Stop()
	for event := range w.ResultChan() {
		o, ok := event.Object.(metav1.Object)
		if !ok {
			continue // an error, after which the watch ends
		}
		if event.Type == watch.Bookmark || f.copier.Rules.Never(k, o) {
			continue
		}
		f.enqueue(item{k, objects.KeyOf(o)})
	}
}
