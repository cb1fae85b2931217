package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/installation"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
	"github.com/replumb/replumb/internal/operator/controller"
	"github.com/replumb/replumb/internal/spec"
)

type handover struct {
	c    *command.Connection
	want *v1alpha1.Migration
	to   v1alpha1.DesiredState
	// approved are the words that the user has approved at a prompt, or by --yes. finishes approves
	// the point of no return.
	approved []string
	finishes bool
	resume   bool
	ended    string
	// unfit is the flag that only a run in this process can do; empty if there is none.
	unfit string
}

// operated reports whether an operator is alive to give the migration to. With --local none is.
func (o *action) operated(ctx context.Context, c *command.Connection) (bool, error) {
	if o.local {
		return false, nil
	}
	leader, err := controller.Alive(ctx, c.Cluster, controller.Namespace, time.Now().Add(c.Skew()))
	return leader != "", err
}

func unfit(flag string) error {
	return &command.UsageError{
		Problem: "an operator runs migrations in this cluster, and cannot go by " + flag,
		Hint:    "leave it out, or add --local: it runs in this process then; nothing was changed",
	}
}

// handOver writes the request to the operator, and follows it. An interruption ends the following
// alone.
func (o *action) handOver(ctx context.Context, h handover) error {
	if h.unfit != "" {
		return unfit(h.unfit)
	}
	have, err := installation.Look(ctx, h.c.Cluster)
	if err != nil {
		return err
	}
	if err := have.Fits(o.Build.Text()); err != nil {
		return err
	}
	asked, err := h.request(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintf(o.Err, "the operator runs migration %s; Ctrl-C leaves it running\n", asked.Name)
	f := &follower{App: o.App, format: o.format, c: h.c, asked: asked, since: time.Now(), files: o.files.Typed()}
	if err := f.follow(ctx); err != nil {
		return err
	}
	return o.Done(o.format, h.ended)
}

func (h *handover) request(ctx context.Context) (asked *v1alpha1.Migration, err error) {
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		have, err := migration.Get(ctx, h.c.Cluster, h.want.Name)
		if err != nil {
			return err
		}
		if have == nil {
			asked = h.want.DeepCopy()
			asked.Status = v1alpha1.MigrationStatus{}
			if err := h.fill(ctx, asked); err != nil {
				return err
			}
			return h.c.Create(ctx, asked, client.FieldOwner(v1alpha1.FieldManager))
		}
		if have.Spec.Paused && !h.resume {
			return &fault.Hinted{
				Err: fmt.Errorf("migration %s is %w", have.Name, engine.ErrPaused), Hint: "replumb resume " + have.Name + " carries on",
			}
		}
		asked = have
		if err := h.settings(have); err != nil {
			return err
		}
		if err := h.fill(ctx, have); err != nil {
			return err
		}
		return h.c.Update(ctx, have, client.FieldOwner(v1alpha1.FieldManager))
	})
	if apierrors.IsNotFound(err) {
		return nil, &fault.Hinted{
			Err:  errors.New("the cluster has no definition of Migration, and the operator waits for it"),
			Hint: "replumb install --crds-only --apply puts it there; or add --local",
		}
	}
	var refused apierrors.APIStatus
	if errors.As(err, &refused) {
		return nil, fmt.Errorf("migration %s: %w", h.want.Name, err)
	}
	return asked, err
}

func (h *handover) settings(have *v1alpha1.Migration) error {
	whole, given := have.DeepCopy(), h.want.DeepCopy()
	spec.Default(whole)
	spec.Default(given)
	effective, changes, err := spec.Merge(whole, given)
	if err != nil || len(changes) == 0 {
		return err
	}
	desired, paused := have.Spec.Desired, have.Spec.Paused
	have.Spec = effective.Spec
	have.Spec.Desired, have.Spec.Paused = desired, paused
	return nil
}

func (h *handover) fill(ctx context.Context, m *v1alpha1.Migration) error {
	m.Spec.Desired = h.to
	if h.resume {
		m.Spec.Paused = false
	}
	words := slices.Clone(h.approved)
	if h.finishes {
		words = append(words, migration.FinishWord(m))
	}
	if h.to != v1alpha1.DesiredRolledBack {
		words = append(words, controller.RepairWord(m)) // a person who runs the same command again has looked
	}
	migration.Approve(m, words...)
	of, err := h.c.Identity(ctx)
	if err != nil {
		return err
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[v1alpha1.AnnotationRequestedAt] = time.Now().UTC().Format(time.RFC3339Nano)
	migration.Bind(m, of.UID)
	return nil
}

func (o *action) handOverApply(ctx context.Context, c *command.Connection, j migrations.Job, until string, expected *migration.Expectation) error {
	of := j.About()
	m := of.Migration
	have, err := migration.Get(ctx, c.Cluster, m.Name)
	if err != nil {
		return err
	}
	if have != nil {
		if err := migration.Applicable(have); err != nil {
			return err
		}
	}
	h := handover{
		c: c, want: m, to: v1alpha1.DesiredApplied, unfit: o.localOnly(until),
		ended: "migration " + m.Name + " is applied; " + of.Applied,
	}
	if expected != nil && h.unfit == "" {
		look, err := j.Inspect(ctx)
		if err != nil {
			return ofJob(j, err)
		}
		if err := expected.Check(look.Outstanding); err != nil {
			return o.explain(err)
		}
		hash, err := look.Whole.Hash()
		if err != nil {
			return err
		}
		h.approved = []string{"plan:" + hash}
	}
	if err := o.handOver(ctx, h); err != nil || o.format.Name == "json" {
		return err
	}
	fmt.Fprintf(o.Err, "hint: %s\n", command.Spoken(o.Name, migration.NextHint(m.Name)))
	return nil
}

func (o *action) localOnly(until string) string {
	switch {
	case until != "":
		return "--until"
	case o.acceptDowntime:
		return "--accept-downtime"
	case o.withoutTarget:
		return "--without-target"
	case o.insecureTarget:
		return "--insecure-target-kubeconfig"
	case o.metricsAddress != "":
		return "--metrics-address"
	}
	return ""
}

func (o *action) handOverTo(ctx context.Context, t *resolved, to v1alpha1.DesiredState, unfit string) error {
	of := t.About()
	h := handover{c: t.c, want: of.Migration, to: to, unfit: unfit, ended: of.WentBack}
	if to == v1alpha1.DesiredFinished {
		h.finishes, h.ended = true, of.Finished
	}
	if h.unfit == "" {
		h.unfit = o.localOnly("")
	}
	return o.handOver(ctx, h)
}

func (o *action) handOverAgain(ctx context.Context, t *resolved) error {
	of := t.About()
	h := handover{c: t.c, want: of.Migration, to: of.Migration.Spec.Desired, resume: true, unfit: o.localOnly("")}
	switch h.to {
	case v1alpha1.DesiredApplied:
		h.ended = "migration " + of.Name + " is applied; " + of.Applied
	case v1alpha1.DesiredRolledBack:
		h.ended = of.WentBack
	case v1alpha1.DesiredFinished:
		h.ended = of.Finished
	default:
		h.ended = "nothing was under way"
	}
	return o.handOver(ctx, h)
}

func only(given bool, flag string) string {
	if given {
		return flag
	}
	return ""
}

func movesLate(j migrations.Job) bool {
	services, ok := j.(*servicecidr.Job)
	return ok && services.CreatedDuring == servicecidr.MoveCreatedDuring
}

// StalledError says that the operator does not go on before a person has done something.
type StalledError struct {
	Name, Reason, Message string
}

func (e *StalledError) Error() string {
	text, _, _ := strings.Cut(e.Message, "\nhint: ")
	return fmt.Sprintf("migration %s is stalled (%s): %s", e.Name, e.Reason, text)
}

func (e *StalledError) Advice() string {
	_, hint, _ := strings.Cut(e.Message, "\nhint: ")
	return hint
}

func (e *StalledError) ExitCode() int {
	switch e.Reason {
	case v1alpha1.ReasonLossBudgetExceeded, v1alpha1.ReasonLateBudgetExceeded:
		return fault.ExitBudget
	case v1alpha1.ReasonNotMeasured:
		return fault.ExitNotMeasured
	case v1alpha1.ReasonFailed:
		return fault.ExitError
	case v1alpha1.ReasonInvalid:
		return fault.ExitUsage
	}
	return fault.ExitBlocked
}
