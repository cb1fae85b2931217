package migrate

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/migrations"
)

// Pause stops a running migration.
func Pause(a *command.App) *cobra.Command {
	o := &source{App: a}
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Stop a running migration", Args: o.nameOrFile,
		Long: `Ask the command that runs the migration NAME to stop. The steps in hand are finished; old and new addresses go
on answering. Until resume, no command goes on with it.

A run sees the pause within five seconds. Whatever it waits for by then, you, a window, a soak, a barrier or
pods that have to leave, it waits no longer; resume begins that wait again.`,
		Example: a.Example("  replumb pause services-to-172-24\n  replumb pause -f move.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := nameIn(args)
			if o.files.Given() {
				g, err := o.one(name)
				if err != nil {
					return err
				}
				name = g.Name
			}
			j, _, err := o.recordedJob(cmd.Context(), name)
			if err != nil {
				return err
			}
			if err := j.Pause(cmd.Context()); err != nil {
				return ofJob(j, err)
			}
			_, err = fmt.Fprintf(a.Out, "migration %s pauses\n", name)
			a.Hint("%s resume %s carries on", a.Name, name)
			return err
		},
	}
	o.files.Declare(cmd)
	return cmd
}

// Resume carries on with a paused migration.
func Resume(a *command.App) *cobra.Command {
	o := &action{source: source{App: a}}
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Carry on with a paused migration", Args: o.nameOrFile,
		Long: `Take a pause back and carry on with what was under way: apply, rollback or finish. Where an operator runs in the
cluster, it carries on and is followed; else, and with --local, this process does. With -f it goes by the
settings in the file, and records them.`,
		Example: a.Example("  replumb resume services-to-172-24\n  replumb resume -f move.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var g *given
			var err error
			if o.files.Given() {
				if g, err = o.one(nameIn(args)); err != nil {
					return err
				}
			}
			t, err := o.resolve(cmd.Context(), g, nameIn(args))
			if err != nil {
				return err
			}
			if err := t.begin(cmd.Context(), o); err != nil {
				return err
			}
			if operated, err := o.operated(cmd.Context(), t.c); err != nil {
				return err
			} else if operated {
				return o.handOverAgain(cmd.Context(), t)
			}
			if err := t.Resume(cmd.Context()); err != nil {
				return ofJob(t.Job, err)
			}
			return o.carryOn(cmd.Context(), t.c, t.Job)
		},
	}
	o.declare(cmd)
	o.declareCalls(cmd)
	return cmd
}

func (o *action) carryOn(ctx context.Context, c *command.Connection, j migrations.Job) error {
	of := j.About()
	switch of.Migration.Spec.Desired {
	case v1alpha1.DesiredApplied:
		hint, err := o.runApply(ctx, c, j)
		o.hintAfter(hint)
		return err
	case v1alpha1.DesiredRolledBack:
		if err := o.run(ctx, c, j, "rollback", j.Rollback); err != nil {
			return err
		}
		return o.Done(o.format, of.WentBack)
	case v1alpha1.DesiredFinished:
		if err := o.run(ctx, c, j, "finish", j.Finish); err != nil {
			return err
		}
		return o.Done(o.format, of.Finished)
	}
	return o.Done(o.format, "nothing was under way")
}
