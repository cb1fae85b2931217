package migrate

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/progress"
	"github.com/replumb/replumb/internal/reporting/webui"
)

// UI shows a migration in a browser, progress.
func UI(a *command.App) *cobra.Command {
	o := &source{App: a}
	port := 0
	cmd := &cobra.Command{
		Use:   "ui [NAME]",
		Short: "Show a migration in a browser, live",
		Args:  cobra.MaximumNArgs(1),
		Long: `Serve a page, on this machine alone, that shows where the migration NAME stands and its report, and draws itself
again: what status --watch and report print. What a gate or a condition asks people to confirm by an annotation
of the Migration can be confirmed there; nothing else is ever written.

The URL is printed. It has a secret that is another one each time: a user who has the URL may look, and confirm,
with your rights. Ctrl-C ends it.`,
		Example: a.Example(`
  replumb ui services-to-172-24
  replumb ui --port 8080`),
		RunE: func(cmd *cobra.Command, args []string) error {
			if port < 0 || port > 65535 {
				return &command.UsageError{Problem: fmt.Sprintf("--port is %d", port), Hint: "use 1 to 65535, or leave it out for any that is free"}
			}
			c, err := o.reach(cmd.Context())
			if err != nil {
				return err
			}
			name, err := o.watchedName(cmd.Context(), c, args)
			if err != nil || name == "" {
				return err
			}
			shown := &shownMigration{source: o, watch: &watch{source: o, c: c, name: name}}
			if _, _, err := shown.Look(cmd.Context()); err != nil { // before anyone opens the page
				return err
			}
			server, err := webui.Listen(cmd.Context(), port, shown)
			if err != nil {
				return &fault.Hinted{Err: err, Hint: "give --port one that is free, or leave it out"}
			}
			fmt.Fprintln(a.Out, server.URL())
			a.Hint("open it in a browser on this machine; a user who has the URL may look and confirm with your rights; Ctrl-C ends it")
			if err := server.Serve(cmd.Context()); !errors.Is(err, context.Canceled) {
				return err
			}
			if why := context.Cause(cmd.Context()); !errors.Is(why, context.Canceled) {
				return why
			}
			return nil
		},
	}
	cmd.Flags().IntVar(&port, "port", 0, "port of 127.0.0.1 to serve at (default any that is free)")
	return cmd
}

type shownMigration struct {
	*source
	mu    sync.Mutex
	watch *watch
}

var _ webui.MigrationSource = (*shownMigration)(nil)

func (s *shownMigration) Look(ctx context.Context) (progress.View, []webui.Offer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m, v, err := s.watch.see(ctx)
	if err != nil {
		return v, nil, err
	}
	return v, webui.Offers(m, v), nil
}

func (s *shownMigration) Report(ctx context.Context) (*htmlreport.Document, error) {
	return s.reportOf(ctx, s.watch.name)
}

func (s *shownMigration) Confirm(ctx context.Context, o webui.Offer) error {
	return retry.RetryOnConflict(retry.DefaultRetry, func() error {
		m := &v1alpha1.Migration{}
		if err := s.watch.c.Get(ctx, client.ObjectKey{Name: s.watch.name}, m); err != nil {
			return fmt.Errorf("migration %s: %w", s.watch.name, err)
		}
		if m.Annotations == nil {
			m.Annotations = map[string]string{}
		}
		m.Annotations[o.Annotation] = o.Value
		return s.watch.c.Update(ctx, m, client.FieldOwner(v1alpha1.FieldManager))
	})
}
