package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/migrations"
)

func (a *app) pause() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Stop a running migration", Args: oneName,
		Long: `Ask the command that runs the migration NAME to stop. The steps in hand are finished; old and new addresses go on answering.
Until resume, no command goes on with it.

A run sees the pause within five seconds. Whatever it waits for by then, you, a window, a soak, a barrier or pods that have to leave, it
waits no longer; resume begins that wait again.`,
		Example: a.example("  replumb pause services-to-172-24"),
		RunE: func(cmd *cobra.Command, args []string) error {
			j, _, err := a.lookingJob(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if err := j.Pause(cmd.Context()); err != nil {
				return ofJob(j, err)
			}
			_, err = fmt.Fprintf(a.out, "migration %s pauses\n", args[0])
			a.hint("%s resume %s carries on", a.name, args[0])
			return err
		},
	}
	return cmd
}

func (a *app) resume() *cobra.Command {
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "Carry on with a paused migration", Args: a.nameOrFile,
		Long: `Take a pause back and carry on, in this process, with what was under way: apply, rollback or finish. With -f it goes by the
settings in the file, and records them.`,
		Example: a.example("  replumb resume services-to-172-24\n  replumb resume -f move.yaml"),
		RunE: func(cmd *cobra.Command, args []string) error {
			t, err := a.target(cmd.Context(), args)
			if err != nil {
				return err
			}
			if err := t.begin(cmd.Context(), a); err != nil {
				return err
			}
			if operated, err := a.operated(cmd.Context(), t.c); err != nil {
				return err
			} else if operated {
				return a.handOverAgain(cmd.Context(), t)
			}
			if err := t.Resume(cmd.Context()); err != nil {
				return ofJob(t.Job, err)
			}
			return a.carryOn(cmd.Context(), t.c, t.Job)
		},
	}
	a.fileFlag(cmd)
	a.callsFlag(cmd)
	a.localFlag(cmd)
	a.outputFlag(cmd, "table", "json")
	a.metricsFlag(cmd)
	return cmd
}

// carryOn does what the Migration in the cluster asks for.
func (a *app) carryOn(ctx context.Context, c *connection, j migrations.Job) error {
	of := j.About()
	switch of.Migration.Spec.Desired {
	case v1alpha1.DesiredApplied:
		return a.runApply(ctx, c, j)
	case v1alpha1.DesiredRolledBack:
		if err := a.run(ctx, c, j, "rollback", j.Rollback); err != nil {
			return err
		}
		return a.done(of.WentBack)
	case v1alpha1.DesiredFinished:
		if err := a.run(ctx, c, j, "finish", j.Finish); err != nil {
			return err
		}
		return a.done(of.Finished)
	}
	return a.done("nothing was under way")
}
