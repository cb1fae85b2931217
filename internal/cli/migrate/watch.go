package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/reporting/progress"
	"github.com/replumb/replumb/internal/safety/lease"
)

const watchEvery = 2 * time.Second

func (o *statusOptions) watchPage(ctx context.Context, args []string) error {
	c, err := o.reach(ctx)
	if err != nil {
		return err
	}
	name, err := o.watchedName(ctx, c, args)
	if err != nil || name == "" {
		return err
	}
	w := &watch{source: &o.source, c: c, name: name}
	screen := o.screen()
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		v, err := w.look(ctx)
		if err != nil && !passing(err) {
			return err
		}
		if err == nil {
			screen.Show(v)
		}
		if err == nil && v.Over {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func passing(err error) bool {
	return engine.Retryable(err) || errors.As(err, new(*cluster.UnreachableError))
}

// watchedName is the named migration, or the only one that is not over; empty if there is none.
func (o *source) watchedName(ctx context.Context, c *command.Connection, args []string) (string, error) {
	if len(args) == 1 {
		return args[0], nil
	}
	all, err := migration.List(ctx, c.Cluster)
	if err != nil {
		return "", err
	}
	var names []string
	for i := range all {
		if !all[i].Status.Phase.Over() {
			names = append(names, all[i].Name)
		}
	}
	switch len(names) {
	case 0:
		fmt.Fprintln(o.Err, "no migration is under way")
		return "", nil
	case 1:
		return names[0], nil
	}
	return "", &command.UsageError{
		Problem: fmt.Sprintf("%d migrations are not over: %v", len(names), names),
		Hint:    "name the one to watch: " + o.Name + " status NAME --watch",
	}
}

func (o *statusOptions) screen() *progress.Screen {
	fd := -1
	if f, ok := o.Out.To.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		fd = int(f.Fd())
	}
	return progress.NewScreen(o.Out.Verbatim(), fd, os.Getenv)
}

// watch reads one migration repeatedly: the Migration, the lock, and what is new in the journal.
type watch struct {
	*source
	c    *command.Connection
	name string
	past *journal.Reader
	of   types.UID

	found migration.StatusDocument
	// at is when found was read, and in which situation.
	at        time.Time
	situation string
}

func (w *watch) look(ctx context.Context) (progress.View, error) {
	_, v, err := w.see(ctx)
	return v, err
}

func (w *watch) see(ctx context.Context) (*v1alpha1.Migration, progress.View, error) {
	m, err := migration.Get(ctx, w.c.Cluster, w.name)
	if err == nil && m == nil {
		err = &AbsentError{Name: w.name, Cluster: w.c.Name()}
	}
	if err != nil {
		return nil, progress.View{}, err
	}
	in := progress.Input{Migration: m, Cluster: w.c.Known().String(), Now: time.Now()}
	if in.Holder, in.Unseen, err = holderOf(ctx, w.c, m.Name); err != nil {
		return nil, progress.View{}, err
	}
	if in.History, err = w.read(ctx, m); err != nil {
		return nil, progress.View{}, err
	}
	found, err := w.status(ctx, m, in.Holder)
	if err != nil {
		return nil, progress.View{}, err
	}
	in.Counts, in.Next = found.Counts, next(m, found.Pending, w.Name)
	v := w.view(in)
	for i := range v.Gates {
		v.Gates[i].Guide = command.Spoken(w.Name, v.Gates[i].Guide)
	}
	v.Waits, v.Problem = command.Spoken(w.Name, v.Waits), command.Spoken(w.Name, v.Problem)
	return m, v, nil
}

// recount is for how long counts stay, while the migration is where it was: there may be thousands
// of objects, and all of them are read.
const recount = 10 * time.Second

// status is what status shows of the objects. Without the right to see them it is as recorded.
func (w *watch) status(ctx context.Context, m *v1alpha1.Migration, holder string) (migration.StatusDocument, error) {
	situation := fmt.Sprint(m.UID, m.Generation, m.Status.Phase, m.Status.LastError, holder)
	if situation == w.situation && time.Since(w.at) < recount {
		return w.found, nil
	}
	j, err := w.silentJob(w.c, m)
	if err != nil {
		return migration.StatusDocument{}, err
	}
	found, err := migrations.StatusOf(ctx, j)
	if apierrors.IsForbidden(err) {
		found, err = migration.StatusDocument{Counts: m.Status.Counts, Pending: m.Status.Phase != v1alpha1.PhaseMoved}, nil
	}
	if err == nil {
		w.found, w.at, w.situation = found, time.Now(), situation
	}
	return found, err
}

func (w *watch) read(ctx context.Context, m *v1alpha1.Migration) (*journal.History, error) {
	if w.past == nil || w.of != m.UID {
		w.past, w.of = journal.NewReader(w.c.Cluster, m), m.UID
	}
	h, err := w.past.Read(ctx)
	if apierrors.IsForbidden(err) {
		return nil, nil
	}
	return h, err
}

// holderOf names the holder of the lock on a migration; empty for none. It is unseen without the
// right to know.
func holderOf(ctx context.Context, c *command.Connection, name string) (holder string, unseen bool, err error) {
	of, err := lease.Current(ctx, c.Cluster)
	switch {
	case apierrors.IsForbidden(err):
		return "", true, nil
	case err != nil || of == nil || of.Migration != "" && of.Migration != name:
		return "", false, err
	}
	text := of.String()
	if !of.Since.IsZero() {
		text += " since " + of.Since.UTC().Format("15:04:05 UTC")
	}
	return text, false, nil
}
