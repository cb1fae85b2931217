package mirror

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/dustin/go-humanize/english"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
)

// copyPatience is how long one copy of everything may take.
const copyPatience = 4 * time.Hour

type copying struct {
	copier *objectsync.Copier
	// run lasts as long as apply does. Followers of changes end with it.
	run context.Context //nolint:containedctx // it bounds what outlives a step

	// made is how many copies the last copy of everything has seen in the target.
	made int

	mu       sync.Mutex
	follower *objectsync.Follower
	stop     context.CancelFunc
	ended    chan error
}

// copy copies objects. It compares all of them, so a second run writes nothing.
func (c *copying) copy(part copyrules.Part, survey *Inventory) engine.Step {
	id, about := "copy/objects", "Copy objects to the target"
	if part == copyrules.Foundations {
		id, about = "copy/foundations", "Copy what workloads stand on"
	}
	return &engine.Write{
		Name: id, About: about, Limit: copyPatience,
		Write: func(ctx context.Context) error {
			result, err := c.copier.Run(ctx, part)
			if err != nil {
				return err
			}
			if part == copyrules.All {
				c.made = result.Written + result.Same
			}
			return refused(result.Errors)
		},
		Changes: func() ([]engine.Change, error) { return copies(part, survey), nil },
	}
}

func copies(part copyrules.Part, survey *Inventory) []engine.Change {
	var out []engine.Change
	for _, count := range survey.Objects.Counts {
		if survey.Objects.Foundation(count.Resource) != (part == copyrules.Foundations) {
			continue
		}
		for _, ref := range count.Refs {
			out = append(out, engine.Change{Verb: "apply", Object: ref.String() + " in the target"})
		}
	}
	return out
}

func (c *copying) count(in client.Client, name string) engine.Step {
	const about = "Record the number of copies"
	return recordMirror(in, name, "copy/count", about, map[string]any{"copies": "how many there are"}, func(m *v1alpha1.MirrorStatus) error {
		if m == nil || m.Copies != c.made {
			return engine.NotYet("status.mirror.copies of migration %s is not %d yet", name, c.made)
		}
		return nil
	}, func(m *v1alpha1.MirrorStatus) { m.Copies = c.made })
}

// RefusedError lists objects that could not be copied.
type RefusedError struct{ Errors []*objectsync.ObjectError }

func (e *RefusedError) Error() string {
	var texts []string
	for _, one := range e.Errors {
		texts = append(texts, one.Error())
	}
	return fmt.Sprintf("%s could not be copied: %s", english.Plural(len(e.Errors), "object", ""), few(texts))
}

func (e *RefusedError) Advice() string { return e.Errors[0].Hint }

func refused(all []*objectsync.ObjectError) error {
	if len(all) == 0 {
		return nil
	}
	return &RefusedError{Errors: all}
}

// parity compares both clusters and waits for differences that are being copied. Other differences
// have every copy written again.
func (c *copying) parity() engine.Step {
	return engine.Interruptible{Write: &engine.Write{
		Name: "parity/compare", About: "Compare both clusters, object by object", Limit: readiness, Holds: c.equal,
		Write: func(ctx context.Context) error {
			var different *DifferentError
			if err := c.equal(ctx); !errors.As(err, &different) {
				return nil
			}
			again := &objectsync.Copier{Source: c.copier.Source, Target: c.copier.Target, Rules: c.copier.Rules, Rewrite: true}
			result, err := again.Run(ctx, copyrules.All)
			if err != nil {
				return err
			}
			return refused(result.Errors)
		},
		Changes: engine.Shows(engine.Change{Verb: "apply", Object: "copies that were changed in the target"}),
	}}
}

func (c *copying) equal(ctx context.Context) error {
	if err := c.caughtUp(); err != nil {
		return err
	}
	parity, err := c.copier.Compare(ctx)
	if err != nil || parity.Equal() {
		return err
	}
	return engine.NotYet("%w", &DifferentError{parity.Differences})
}

// DifferentError lists what differs.
type DifferentError struct{ Differences []copyrules.Difference }

func (e *DifferentError) Error() string {
	var texts []string
	for _, d := range e.Differences {
		texts = append(texts, d.String())
	}
	return fmt.Sprintf("%s: %s", english.Plural(len(e.Differences), "difference", ""), few(texts))
}

func (*DifferentError) Advice() string {
	return "something in the target changes copies: have it stop, leave the object out, or change it on the way by spec.mirror.copy.transforms"
}

func (c *copying) unready(ctx context.Context) ([]string, error) {
	notes, err := c.copier.Unready(ctx)
	var texts []string
	for _, n := range notes {
		texts = append(texts, n.Ref.String()+" "+n.What)
	}
	return texts, err
}

// follow copies changes of the source until names have moved or the run ends.
func (c *copying) follow() engine.Step {
	return engine.Interruptible{Write: &engine.Write{
		Name: "copy/follow", About: "Follow what changes in the source", Limit: readiness,
		Holds: func(context.Context) error {
			c.mu.Lock()
			following := c.follower != nil
			c.mu.Unlock()
			if !following {
				return engine.NotYet("changes of the source are not followed yet")
			}
			return c.caughtUp()
		},
		Write: func(context.Context) error {
			c.begin()
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "apply", Object: "whatever changes in the source, until names have moved"}),
	}}
}

func (c *copying) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.follower != nil {
		return
	}
	ctx, stop := context.WithCancel(c.run)
	c.follower, c.stop = objectsync.NewFollower(c.copier), stop
	c.ended = make(chan error, 1)
	go func(f *objectsync.Follower) { c.ended <- f.Run(ctx) }(c.follower)
}

// caughtUp fails unless what was seen to change in the source is in the target.
func (c *copying) caughtUp() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.follower == nil {
		return nil
	}
	select {
	case err := <-c.ended:
		c.follower = nil
		if err != nil {
			return fmt.Errorf("following what changes in the source: %w", err)
		}
		return engine.NotYet("changes of the source are not followed any more")
	default:
	}
	if troubles := c.follower.Troubles(); len(troubles) > 0 {
		return engine.NotYet("%w", refused(troubles))
	}
	if !c.follower.CaughtUp() {
		return engine.NotYet("changes of the source are being copied, the oldest since %s", c.follower.Lag().Round(time.Second))
	}
	return nil
}

// unfollow stops following: from here on the source is no longer what the target has to be.
func (c *copying) unfollow() engine.Step {
	return &engine.Write{
		Name: "handover/unfollow", About: "Stop following the source",
		Holds: func(context.Context) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.follower != nil {
				return engine.NotYet("changes of the source are still followed")
			}
			return nil
		},
		Write: func(context.Context) error {
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.follower == nil {
				return nil
			}
			c.stop()
			err := <-c.ended
			c.follower = nil
			return err
		},
		Changes: func() ([]engine.Change, error) { return nil, nil }, // it ends what this process does
	}
}
