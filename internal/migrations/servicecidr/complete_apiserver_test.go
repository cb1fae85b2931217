//go:build apiserver && long

package servicecidr

import (
	"context"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/testing/crash"
)

// killedInHop is a client that ends with patch A of a Service.
type killedInHop struct {
	client.WithWatch
	name string
	over bool
}

func (c *killedInHop) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if c.over {
		return crash.ErrKilled
	}
	body, _ := p.Data(o)
	err := c.WithWatch.Patch(ctx, o, p, opts...)
	c.over = o.GetName() == c.name && !triesPatch(opts) && strings.Contains(string(body), `"type":"ExternalName"`)
	return err
}

func (c *killedInHop) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if c.over {
		return crash.ErrKilled
	}
	return c.WithWatch.Create(ctx, o, opts...)
}

// TestHalfHoppedIsCompletedByAnyCommand: a Service that a run left between the two patches arrives
// with the next command, whichever it is, also where that command cannot go on: a policy came that
// blocks apply, and it is too early for finish.
func TestHalfHoppedIsCompletedByAnyCommand(t *testing.T) {
	killed := func(t *testing.T, act func(*fixture) error) *fixture {
		t.Helper()
		f := setup(t)
		f.service("cart", at("10.96.3.7"))
		if act != nil {
			f.apply()
			f.service("pay", at("10.96.3.9"))
		} else {
			f.job.Spec.Batch = 1
			f.service("pay", at("10.96.3.9")) // its turn comes after cart's
			act = func(f *fixture) error {
				_, err := f.job.Apply(t.Context(), f.runner)
				return err
			}
		}
		cut := *f.job.Deps.Cluster
		cut.WithWatch = &killedInHop{WithWatch: server.WithWatch, name: "cart"}
		f.through(&cut, func() {
			if err := act(f); err == nil {
				t.Fatal("the run got through")
			}
		})
		if !f.half(f.get("cart")) {
			t.Fatal("cart is not in the middle of a hop")
		}
		f.refused(asExternalName("pay"), func() {
			f.policy("no-external-names", "object.spec.type != 'ExternalName' || oldObject.spec.type == 'ExternalName'",
				rule("", "services", admissionv1.Update))
		})
		f.again()
		return f
	}
	apply := func(f *fixture) error {
		_, err := f.job.Apply(t.Context(), f.runner)
		return err
	}
	for name, tt := range map[string]struct {
		cut, command func(*fixture) error
		// to is where the Service is then.
		to   string
		ends func(error) bool
	}{
		"apply, then apply":       {nil, apply, "172.24.3.7", func(err error) bool { return errors.As(err, new(*findings.BlockedError)) }},
		"apply, then finish":      {nil, (*fixture).finish, "172.24.3.7", func(err error) bool { return errors.As(err, new(*migration.StateError)) }},
		"apply, then rollback":    {nil, (*fixture).rollback, "10.96.3.7", func(err error) bool { return err == nil }},
		"rollback, then apply":    {(*fixture).rollback, apply, "10.96.3.7", func(err error) bool { return errors.As(err, new(*findings.BlockedError)) }},
		"rollback, then finish":   {(*fixture).rollback, (*fixture).finish, "10.96.3.7", func(err error) bool { return errors.As(err, new(*migration.StateError)) }},
		"rollback, then rollback": {(*fixture).rollback, (*fixture).rollback, "10.96.3.7", func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			f := killed(t, tt.cut)
			if tt.cut == nil { // the control: apply as it is without completing anything
				p, err := f.job.Examine(t.Context())
				f.must(err)
				plan, _ := p.Apply().Certain()
				if err := f.runner.Run(t.Context(), plan); !errors.As(err, new(*findings.BlockedError)) || !f.half(f.get("cart")) {
					t.Fatalf("control: %v, and cart is complete", err)
				}
			}
			if err := tt.command(f); !tt.ends(err) {
				t.Errorf("ended with %v", err)
			}
			if got := f.get("cart").Spec.ClusterIP; got != tt.to {
				t.Errorf("cart is at %q, want %s", got, tt.to)
			}
		})
	}
}
