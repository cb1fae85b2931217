package objectsync

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/kube/objectsync/objects"
)

// DefaultPatience is how long what may come right by itself is tried again.
const DefaultPatience = 2 * time.Minute

// Copier copies what Rules take from Source to Target.
type Copier struct {
	Source, Target *Side
	Rules          *copyrules.Rules
	// Progress, if set, gets how many objects were dealt with, of how many. Calls do not overlap.
	Progress func(done, total int)
	// Patience is how long writes that may succeed later are tried again.
	Patience time.Duration
	// Rewrite writes every copy, which brings back what was changed in the target.
	Rewrite bool

	hasty bool

	mu     sync.Mutex
	result Result
}

// Result counts each object of the source once.
type Result struct {
	Total                                int
	Written, Same, Kept, LeftOut, Failed int
	// Deleted are copies whose object the source no longer has.
	Deleted int
	Errors  []*ObjectError
}

func (r *Result) Done() int { return r.Written + r.Same + r.Kept + r.LeftOut + r.Failed }

// entry is an object of the target.
type entry struct {
	uid    types.UID
	copied string
	owned  bool
	seen   bool
	// asleep is a singleton that replumb keeps from running.
	asleep bool
}

// Run copies one part, or all, and deletes copies without an object in the source, except
// namespaces, definitions and claims. It fails when a side cannot be read; the result has what is
// wrong with single objects. A Copier makes one run at a time.
func (c *Copier) Run(ctx context.Context, part copyrules.Part) (Result, error) {
	c.result = Result{}
	kinds, err := FindKinds(ctx, c.Source, c.Target, c.Rules)
	if err != nil {
		return c.result, err
	}
	var chosen []objects.ResourceKind
	for _, k := range kinds.Copied {
		if part.Of(k) {
			chosen = append(chosen, k)
		}
	}
	for _, k := range chosen {
		n, err := c.Source.count(ctx, k)
		if err != nil {
			return c.result, fmt.Errorf("counting %s of the source: %w", k, err)
		}
		c.result.Total += n
	}
	for _, k := range chosen {
		if err := c.kind(ctx, k); err != nil {
			return c.result, err
		}
	}
	return c.result, c.pruneExcluded(ctx, kinds, part)
}

// pruneExcluded deletes copies of kinds that are no longer copied, the last of the order first.
func (c *Copier) pruneExcluded(ctx context.Context, kinds *ResourceKinds, part copyrules.Part) error {
	for _, k := range slices.Backward(kinds.Excluded) {
		if !part.Of(k) {
			continue
		}
		index, err := c.index(ctx, k)
		if err != nil {
			return err
		}
		if err := c.prune(ctx, k, index); err != nil {
			return err
		}
	}
	return nil
}

func (c *Copier) kind(ctx context.Context, k objects.ResourceKind) error {
	index, err := c.index(ctx, k)
	if err != nil {
		return err
	}
	later, err := c.pass(ctx, k, index)
	if err != nil {
		return err
	}
	if err := c.again(ctx, k, index, later); err != nil {
		return err
	}
	return c.prune(ctx, k, index)
}

// index is what the target has of a kind; nothing, as long as the kind is not served yet.
func (c *Copier) index(ctx context.Context, k objects.ResourceKind) (map[objects.Key]*entry, error) {
	index := map[objects.Key]*entry{}
	err := c.Target.EachMeta(ctx, k, "", func(o *metav1.PartialObjectMetadata) error {
		index[objects.KeyOf(o)] = c.entry(o)
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("reading %s of the target: %w", k, err)
	}
	return index, nil
}

// Names are those of the objects that the target has of a kind, and whether each is a copy.
func (c *Copier) Names(ctx context.Context, k objects.ResourceKind) (map[objects.Key]bool, error) {
	index, err := c.index(ctx, k)
	names := make(map[objects.Key]bool, len(index))
	for of, e := range index {
		names[of] = e.owned
	}
	return names, err
}

func (c *Copier) entry(o metav1.Object) *entry {
	e := &entry{uid: o.GetUID(), owned: c.Rules.Owns(o), asleep: copyrules.IsAsleep(o)}
	if e.owned {
		e.copied = o.GetAnnotations()[v1alpha1.AnnotationCopied]
	}
	return e
}

// pass reads the source, and writes as it reads. It returns what to try again.
func (c *Copier) pass(ctx context.Context, k objects.ResourceKind, index map[objects.Key]*entry) ([]objects.Key, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	queue := make(chan *unstructured.Unstructured)
	var mu sync.Mutex
	var later []objects.Key
	var workers sync.WaitGroup
	for range c.Rules.Parallel() {
		workers.Go(func() {
			for o := range queue {
				mu.Lock()
				e := index[objects.KeyOf(o)]
				mu.Unlock()
				done := c.one(ctx, k, o, e)
				if !done.again || c.hasty {
					c.count(done)
					continue
				}
				mu.Lock()
				later = append(later, objects.KeyOf(o))
				mu.Unlock()
			}
		})
	}
	err := c.Source.Each(ctx, k, func(o *unstructured.Unstructured) error {
		select {
		case queue <- o:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	close(queue)
	workers.Wait()
	if err != nil {
		return nil, fmt.Errorf("reading %s of the source: %w", k, err)
	}
	return later, ctx.Err()
}

func (c *Copier) count(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch o.what {
	case written:
		c.result.Written++
	case same:
		c.result.Same++
	case kept:
		c.result.Kept++
	case leftOutOfIt:
		c.result.LeftOut++
	case failed:
		c.result.Failed++
		c.result.Errors = append(c.result.Errors, o.err)
	}
	if c.Progress != nil {
		c.Progress(c.result.Done(), max(c.result.Total, c.result.Done()))
	}
}

// again tries what failed until it succeeds or patience ends.
func (c *Copier) again(ctx context.Context, k objects.ResourceKind, index map[objects.Key]*entry, later []objects.Key) error {
	patience := c.Patience
	if patience == 0 {
		patience = DefaultPatience
	}
	end := time.Now().Add(patience)
	const first, longest = 500 * time.Millisecond, 10 * time.Second
	for pause := first; len(later) > 0; pause = min(2*pause, longest) {
		if err := wait(ctx, min(pause, max(time.Until(end), time.Millisecond))); err != nil {
			return err
		}
		last := !time.Now().Before(end)
		var left []objects.Key
		for _, of := range later {
			done := c.retry(ctx, k, of, index)
			if done.again && !last {
				left = append(left, of)
				continue
			}
			c.count(done)
		}
		later = left
	}
	return ctx.Err()
}

func (c *Copier) retry(ctx context.Context, k objects.ResourceKind, of objects.Key, index map[objects.Key]*entry) outcome {
	o, err := c.Source.Read(ctx, k, of)
	if apierrors.IsNotFound(err) {
		return outcome{what: leftOutOfIt}
	}
	if err != nil {
		return failure(trouble(of.Ref(k), "reading", err))
	}
	e, err := c.look(ctx, k, of)
	if err != nil {
		return failure(trouble(of.Ref(k), "reading", err))
	}
	if e != nil {
		if index[of] == nil {
			index[of] = e
		}
		e.seen, index[of].seen = true, true
	}
	return c.one(ctx, k, o, e)
}

func (c *Copier) look(ctx context.Context, k objects.ResourceKind, of objects.Key) (*entry, error) {
	have, err := c.Target.MetaOf(k, of.Namespace).Get(ctx, of.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return c.entry(have), nil
}

// prune deletes copies of what the source no longer has, or no longer has for copying.
func (c *Copier) prune(ctx context.Context, k objects.ResourceKind, index map[objects.Key]*entry) error {
	if !copyrules.Prunable(k) {
		return nil
	}
	for of, e := range index {
		if !e.owned || e.seen || copyrules.Adopts(k, of) {
			continue
		}
		if err := c.Target.remove(ctx, k, of, e.uid); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			c.result.Errors = append(c.result.Errors, trouble(of.Ref(k), "deleting", err))
			continue
		}
		c.result.Deleted++
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
