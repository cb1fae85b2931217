package migrate

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

type finishOptions struct {
	action
	leaveClients bool
}

// Finish takes old addresses away for good.
func Finish(a *command.App) *cobra.Command {
	o := &finishOptions{action: action{source: source{App: a}}}
	cmd := &cobra.Command{
		Use:   "finish NAME",
		Short: "Take old addresses away, for good",
		Args:  o.nameOrFile,
		Long: `Take bridges and old addresses away, the old range of pods, or what is left of old nodes, of the old CNI and of
a mirror, whose names lead back for good. This passes the point of no return: afterwards there is no rollback.

It refuses as long as apply has something left to do, says what becomes final, and asks for the name of the
cluster. Run again it carries on. With -f it goes by the settings in the file, such as gateWait or notify, and
records them. With a file of several Migrations it begins when all have moved, and finishes them in the order in
which they did; a name chooses one of them.`,
		Example: a.Example(`
  replumb finish services-to-172-24
  replumb finish -f both.yaml
  replumb finish services-to-172-24 --yes
  replumb finish services-to-172-24 --leave-clients   # those who still use an old address lose it`),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, s, err := o.fromFiles(o.format, args)
			switch {
			case err != nil:
				return err
			case s != nil:
				return o.finishSet(cmd.Context(), s)
			}
			return o.finishOne(cmd.Context(), g, nameIn(args), o.leaveClients)
		},
	}
	o.declare(cmd)
	o.declareCalls(cmd)
	o.declareWithoutTarget(cmd)
	cmd.Flags().BoolVar(&o.leaveClients, "leave-clients", false, "don't wait until no one uses old addresses (spec.serviceCIDR)")
	command.YesFlag(cmd, &o.yes)
	return cmd
}

func (o *finishOptions) finishOne(ctx context.Context, g *given, name string, leave bool) error {
	t, err := o.resolve(ctx, g, name)
	if err != nil {
		return err
	}
	if leave {
		if err := leaveClients(t.Job); err != nil {
			return err
		}
	}
	ahead, err := t.FinishPreview(ctx)
	if err != nil {
		return ofJob(t.Job, err)
	}
	if o.format.Name != "json" {
		for _, line := range ahead.Finals {
			fmt.Fprintln(o.Err, line)
		}
	}
	if err := o.ConfirmByName(o.yes, ahead.Question, "cluster", t.c.Name()); err != nil {
		return err
	}
	if err := t.begin(ctx, &o.action); err != nil {
		return err
	}
	if operated, err := o.operated(ctx, t.c); err != nil {
		return err
	} else if operated {
		return o.handOverTo(ctx, t, v1alpha1.DesiredFinished, only(leave, "--leave-clients"))
	}
	if err := o.run(ctx, t.c, t.Job, "finish", t.Finish); err != nil {
		return err
	}
	return o.Done(o.format, t.About().Finished)
}

func leaveClients(j migrations.Job) error {
	services, ok := j.(*servicecidr.Job)
	if !ok {
		return &command.UsageError{
			Problem: "--leave-clients is for migrations of Services (spec.serviceCIDR)",
			Hint:    "leave it out: there are no old addresses in use",
		}
	}
	services.LeaveClients = true
	return nil
}
