package migrate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"
	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

type rollbackOptions struct {
	action
	late string
}

// Rollback brings everything back to its old address.
func Rollback(a *command.App) *cobra.Command {
	o := &rollbackOptions{action: action{source: source{App: a}}}
	cmd := &cobra.Command{
		Use: "rollback NAME", Short: "Bring everything back to where it was", Args: o.nameOrFile,
		Long: `Bring back what apply has moved: Services to their old addresses, with cluster DNS and the default range, pods
to the old range, nodes to the old network, names of a mirror to the first cluster, the old CNI, the former mode
of kube-proxy. Like apply it waits where only you can do something.

It works from every point before finish has passed the point of no return, and carries on when run again.

Services that were made in the new range since the migration began are listed first. --late says whether they
move to free addresses in the old range, or stay, and the new range with them; without it you are asked. A
rollback that goes on by itself keeps them.

With -f it goes by the settings in the file, such as gateWait or notify, and records them. Of a file with
several Migrations it takes back the last one first; a name chooses one of them.`,
		Example: a.Example(`
  replumb rollback services-to-172-24
  replumb rollback services-to-172-24 --yes   # where there is no terminal to ask on
  replumb rollback services-to-172-24 --yes --late Move   # also of Services made in the new range meanwhile
  replumb rollback -f move.yaml               # with the settings of the file
  replumb rollback -f both.yaml               # several migrations, the last one first
  replumb rollback mirror --without-target    # the mirror is gone`),
		RunE: func(cmd *cobra.Command, args []string) error {
			g, s, err := o.fromFiles(o.format, args)
			switch {
			case err != nil:
				return err
			case s != nil:
				return o.rollbackSet(cmd.Context(), s)
			}
			return o.rollbackOne(cmd.Context(), g, nameIn(args), o.late)
		},
	}
	o.declare(cmd)
	o.declareCalls(cmd)
	o.declareWithoutTarget(cmd)
	command.LateFlag(cmd, &o.late)
	command.YesFlag(cmd, &o.yes)
	return cmd
}

func (o *rollbackOptions) rollbackOne(ctx context.Context, g *given, name, late string) error {
	t, err := o.resolve(ctx, g, name)
	if err != nil {
		return err
	}
	if t.About().Migration.Status.PointOfNoReturnPassed {
		return t.Rollback(ctx, o.Runner(o.format)) // which refuses
	}
	if err := o.settleLate(ctx, t.Job, late); err != nil {
		return err
	}
	if err := o.Confirm(o.yes, t.About().GoBack); err != nil {
		return err
	}
	if err := t.begin(ctx, &o.action); err != nil {
		return err
	}
	if operated, err := o.operated(ctx, t.c); err != nil {
		return err
	} else if operated {
		return o.handOverTo(ctx, t, v1alpha1.DesiredRolledBack, only(movesLate(t.Job), "--late Move"))
	}
	if err := o.run(ctx, t.c, t.Job, "rollback", t.Rollback); err != nil {
		return err
	}
	return o.Done(o.format, t.About().WentBack)
}

func undecided(name string, movable []servicecidr.CreatedDuring) error {
	var names []string
	for _, l := range movable {
		names = append(names, l.Service+" ("+l.Address+")")
	}
	return &command.Failure{
		Problem: fmt.Sprintf("%s made in the new range of migration %s since it began, and a rollback takes that range away: %s",
			english.Plural(len(movable), "Service was", "Services were"), name, strings.Join(lists.Limit(names, 5), ", ")),
		Hint: "nothing was changed; --late Move takes them to free addresses in the old range, --late Keep leaves them as they are, and the range with them",
		Code: fault.ExitBlocked,
	}
}

func (o *action) settleLate(ctx context.Context, j migrations.Job, choice string) error {
	services, ok := j.(*servicecidr.Job)
	if !ok {
		if choice == "" {
			return nil
		}
		return &command.UsageError{
			Problem: "--late is for migrations of Services (spec.serviceCIDR)",
			Hint:    "leave it out: there are no addresses in a new Service range",
		}
	}
	chosen := servicecidr.CreatedDuringPolicy(choice)
	if choice != "" && chosen != servicecidr.MoveCreatedDuring && chosen != servicecidr.KeepCreatedDuring {
		return &command.UsageError{Problem: fmt.Sprintf("--late %s is not known", choice), Hint: "use --late Move or --late Keep"}
	}
	looking := *services
	looking.Silent = true
	survey, err := looking.LoadInventory(ctx)
	if err != nil {
		return ofJob(j, err)
	}
	late := servicecidr.FindCreatedDuring(survey)
	for _, line := range servicecidr.CreatedDuringLines(late) {
		fmt.Fprintln(o.Err, line)
	}
	movable := slices.DeleteFunc(slices.Clone(late), func(l servicecidr.CreatedDuring) bool { return l.Stays != "" })
	switch {
	case chosen != "" || len(movable) == 0:
		services.CreatedDuring = chosen
		return nil
	case o.yes || !o.AsksPeople():
		return undecided(services.Spec.Name, movable)
	}
	services.CreatedDuring, err = o.askLate(len(movable))
	return err
}

func (o *action) askLate(movable int) (servicecidr.CreatedDuringPolicy, error) {
	answer, err := o.Ask(fmt.Sprintf("Move %s to free addresses in the old range, or keep them, and the new range for them? [move/keep] ",
		english.Plural(movable, "Service", "")))
	if err != nil {
		return "", err
	}
	switch strings.ToLower(answer) {
	case "move":
		return servicecidr.MoveCreatedDuring, nil
	case "keep":
		return servicecidr.KeepCreatedDuring, nil
	}
	return "", &fault.Hinted{
		Err: errors.New("neither move nor keep was answered; nothing was changed"), Hint: "answer one of the two, or add --late",
	}
}
