package objectsync

import (
	"cmp"
	"context"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

func (f *Follower) enqueue(i item) {
	f.mark(i)
	f.queue.Add(i)
}

func (f *Follower) mark(i item) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.pending[i] == nil {
		f.pending[i] = &change{since: time.Now()}
	}
	f.pending[i].times++
}

func (f *Follower) times(i item) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.pending[i]; c != nil {
		return c.times
	}
	return 0
}

func (f *Follower) work(ctx context.Context) {
	for {
		i, end := f.queue.Get()
		if end {
			return
		}
		times := f.times(i)
		err := f.deal(ctx, i)
		f.queue.Done(i)
		f.record(i, err)
		if err != nil && ctx.Err() == nil {
			f.queue.AddRateLimited(i)
			continue
		}
		f.queue.Forget(i)
		f.finish(i, times)
	}
}

func (f *Follower) record(i item, err *ObjectError) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == nil {
		delete(f.troubles, i)
		return
	}
	f.troubles[i] = err
}

// finish forgets a change, unless there was another meanwhile: that one is in the queue.
func (f *Follower) finish(i item, times int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.pending[i]; c != nil && c.times == times {
		delete(f.pending, i)
	}
}

func (f *Follower) deal(ctx context.Context, i item) *ObjectError {
	c := f.copier
	if i.Name == "" {
		return f.recheck(ctx, i.kind)
	}
	ref := i.Ref(i.kind)
	e, err := c.look(ctx, i.kind, i.Key)
	if err != nil {
		return trouble(ref, "reading", err)
	}
	o, err := c.Source.Read(ctx, i.kind, i.Key)
	if err != nil && !apierrors.IsNotFound(err) {
		return trouble(ref, "reading", err)
	}
	if i.kind.Group == objects.Definitions().Group {
		defer f.lookAgain()
	}
	done := outcome{what: leftOutOfIt}
	if err == nil {
		done = c.one(ctx, i.kind, o, e)
	}
	if done.what != leftOutOfIt {
		return done.err
	}
	if e == nil || !e.owned || !copyrules.Prunable(i.kind) || copyrules.Adopts(i.kind, i.Key) {
		return nil
	}
	if err := c.Target.remove(ctx, i.kind, i.Key, e.uid); err != nil {
		return trouble(ref, "deleting", err)
	}
	return nil
}

func (f *Follower) recheck(ctx context.Context, k objects.ResourceKind) *ObjectError {
	for _, s := range []*Side{f.copier.Source, f.copier.Target} {
		err := s.EachMeta(ctx, k, "", func(o *metav1.PartialObjectMetadata) error {
			if !f.copier.Rules.Never(k, o) {
				f.enqueue(item{k, objects.KeyOf(o)})
			}
			return nil
		})
		if err != nil && !apierrors.IsNotFound(err) {
			return trouble(objects.Ref{Resource: k.String(), Name: "*"}, "reading", err)
		}
	}
	return nil
}

func (f *Follower) lookAgain() {
	select {
	case f.again <- struct{}{}:
	default: // a look is due already
	}
}

// CaughtUp reports whether the target has all changes seen. Only Compare is certain.
func (f *Follower) CaughtUp() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.started && len(f.pending) == 0
}

func (f *Follower) Lag() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	var longest time.Duration
	for _, c := range f.pending {
		longest = max(longest, time.Since(c.since))
	}
	return longest
}

// Troubles are what keeps changes from being copied, for each object the last.
func (f *Follower) Troubles() []*ObjectError {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make([]*ObjectError, 0, len(f.troubles))
	for _, e := range f.troubles {
		all = append(all, e)
	}
	slices.SortFunc(all, func(a, b *ObjectError) int { return cmp.Compare(a.Ref.String(), b.Ref.String()) })
	return all
}
