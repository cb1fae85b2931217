// Package crash cuts runs of migrations off after single writes, as a process that is killed is.
package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// ErrKilled is what every write returns after the last one that was let through.
var ErrKilled = errors.New("killed")

// Client lets a number of writes through, and none after them. Dry runs and reviews are no writes.
type Client struct {
	client.WithWatch
	// Last is the number of the last write that is let through, from 1; 0 lets all through.
	Last int

	mu     sync.Mutex
	phase  string
	phases []string
	hidden map[string]bool
}

// Watch is a cluster whose writes a test watches: with any that the preview of its step hides, the
// test fails when it ends.
func Watch(t testing.TB, of *cluster.Cluster) *cluster.Cluster {
	watched, c := *of, &Client{WithWatch: of.WithWatch}
	watched.WithWatch = c
	t.Cleanup(func() {
		for _, hidden := range c.Hidden() {
			t.Errorf("%s, and plan does not show it", hidden)
		}
	})
	return &watched
}

// Event is to be called with the events of the run: they say which phase a write belongs to.
func (c *Client) Event(e engine.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch e.Kind {
	case engine.RunStarted, engine.RunDone:
		c.phase = "" // what is written between runs belongs to no phase
	case engine.PhaseStarted:
		c.phase = e.Phase
	}
}

// Writes is how many there were.
func (c *Client) Writes() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.phases)
}

// Points has, of every stretch of writes in one phase, the number of the one in the middle: cut off
// after each of them, a run ends once in every phase that writes, with a part of it done.
func (c *Client) Points() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []int
	first := 0
	for i, phase := range c.phases {
		if i+1 == len(c.phases) || c.phases[i+1] != phase {
			all = append(all, (first+i)/2+1)
			first = i + 1
		}
	}
	return all
}

// Hidden are the writes of steps whose preview shows no object of that kind, each once: plan has
// kept them from its reader. Writes outside of steps, such as those of the lock and of the status,
// belong to no plan.
func (c *Client) Hidden() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.hidden))
}

// write is called before every write to an object. A dry run writes nothing.
func (c *Client) write(ctx context.Context, o runtime.Object, dryRun ...string) error {
	if len(dryRun) > 0 {
		return nil
	}
	kind, err := apiutil.GVKForObject(o, c.Scheme())
	if err != nil {
		return err
	}
	step := engine.Current(ctx)
	shown := step == nil || shows(step, kind.Kind)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.Last > 0 && len(c.phases) >= c.Last {
		return ErrKilled
	}
	c.phases = append(c.phases, c.phase)
	if !shown {
		if c.hidden == nil {
			c.hidden = map[string]bool{}
		}
		c.hidden[fmt.Sprintf("step %s (%T) writes a %s", step.ID(), step, kind.Kind)] = true
	}
	return nil
}

// shows reports whether the preview of a step has an object of a kind.
func shows(s engine.Step, kind string) bool {
	changes, err := engine.Preview(s)
	return err == nil && slices.ContainsFunc(changes, func(c engine.Change) bool {
		words := strings.FieldsFunc(c.Object, func(r rune) bool { return !unicode.IsLetter(r) })
		return slices.ContainsFunc(words, func(word string) bool {
			return strings.EqualFold(strings.TrimSuffix(word, "s"), strings.TrimSuffix(kind, "s"))
		})
	})
}

func (c *Client) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	co := &client.CreateOptions{}
	co.ApplyOptions(opts)
	if !strings.HasSuffix(fmt.Sprintf("%T", o), "AccessReview") {
		if err := c.write(ctx, o, co.DryRun...); err != nil {
			return err
		}
	}
	return c.WithWatch.Create(ctx, o, opts...)
}

func (c *Client) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	uo := &client.UpdateOptions{}
	uo.ApplyOptions(opts)
	if err := c.write(ctx, o, uo.DryRun...); err != nil {
		return err
	}
	return c.WithWatch.Update(ctx, o, opts...)
}

func (c *Client) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	po := &client.PatchOptions{}
	po.ApplyOptions(opts)
	if err := c.write(ctx, o, po.DryRun...); err != nil {
		return err
	}
	return c.WithWatch.Patch(ctx, o, p, opts...)
}

func (c *Client) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	do := &client.DeleteOptions{}
	do.ApplyOptions(opts)
	if err := c.write(ctx, o, do.DryRun...); err != nil {
		return err
	}
	return c.WithWatch.Delete(ctx, o, opts...)
}

func (c *Client) DeleteAllOf(ctx context.Context, o client.Object, opts ...client.DeleteAllOfOption) error {
	if err := c.write(ctx, o); err != nil {
		return err
	}
	return c.WithWatch.DeleteAllOf(ctx, o, opts...)
}

func (c *Client) Status() client.SubResourceWriter { return &status{c.WithWatch.Status(), c} }

// status writes to the status of objects.
type status struct {
	client.SubResourceWriter
	c *Client
}

func (s *status) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	po := &client.SubResourcePatchOptions{}
	po.ApplyOptions(opts)
	if err := s.c.write(ctx, o, po.DryRun...); err != nil {
		return err
	}
	return s.SubResourceWriter.Patch(ctx, o, p, opts...)
}

func (s *status) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := s.c.write(ctx, o); err != nil {
		return err
	}
	return s.SubResourceWriter.Update(ctx, o, opts...)
}
