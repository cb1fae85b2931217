package migrate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrationset"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/spec"
)

type set struct {
	*source
	format  command.Format
	members []member
	c       *command.Connection
}

type member struct {
	*given
	set migration.SetPlace
	// have is what the cluster has of it, nil if nothing, and stand where it stands there.
	have  *v1alpha1.Migration
	stand migrationset.MemberProgress
}

func (m member) moves() string { return m.set.Moves }

func (o *source) chosen(f command.Format, name string) (*given, *set, error) {
	sources, err := o.files.Sources(o.App)
	if err != nil {
		return nil, nil, err
	}
	read, err := spec.ReadAll(sources...)
	if err != nil {
		return nil, nil, err
	}
	if len(read) == 1 {
		g, err := o.one(name)
		return g, nil, err
	}
	s, err := o.setOf(f, read)
	if err != nil || name == "" {
		return nil, s, err
	}
	for _, of := range s.members {
		if of.Name == name {
			return of.given, nil, nil
		}
	}
	return nil, nil, &command.UsageError{
		Problem: fmt.Sprintf("the file has no migration %s", name),
		Hint:    "it has " + strings.Join(s.names(), ", ") + ": name one, or none for all",
	}
}

func (o *source) setOf(f command.Format, read []spec.Given) (*set, error) {
	all := map[*v1alpha1.Migration]*given{}
	var ordered []*v1alpha1.Migration
	for _, g := range read {
		one, err := o.check(g, true)
		if err != nil {
			return nil, err
		}
		all[one.Migration] = one
		ordered = append(ordered, one.Migration)
	}
	ordered, err := migrationset.Order(o.Kinds.Describe, ordered)
	if err != nil {
		return nil, err
	}
	s := &set{source: o, format: f}
	for _, m := range ordered {
		s.members = append(s.members, member{given: all[m], set: o.Kinds.Of(m).Set})
	}
	return s, nil
}

func (s *set) between(looks []*migration.Inspection) findings.Findings {
	var all []migrationset.SetMember
	for i, m := range s.members {
		of := migrationset.SetMember{Migration: m.Migration, Place: m.set}
		if looks != nil && looks[i] != nil {
			of.Plan = looks[i].Outstanding
		}
		all = append(all, of)
	}
	return findings.Run(migrationset.Checks(), all)
}

func (s *set) fit(fits ...fit) error {
	for _, of := range s.members {
		for _, fit := range fits {
			if err := fit(of.given); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *set) reach(ctx context.Context) (err error) {
	if s.c, err = s.source.reach(ctx); err != nil {
		return err
	}
	for i := range s.members {
		of := &s.members[i]
		have, err := migration.Get(ctx, s.c.Cluster, of.Name)
		if err != nil {
			return err
		}
		for _, m := range []*v1alpha1.Migration{of.Migration, have} {
			if err := migration.Bound(ctx, s.c, m); err != nil {
				return err
			}
		}
		of.have, of.stand = have, migrationset.MemberProgress{Name: of.Name}
		if have != nil {
			of.stand.Phase, of.stand.Final = have.Status.Phase, have.Status.PointOfNoReturnPassed
			of.stand.Applied = have.Spec.Desired == v1alpha1.DesiredApplied
		}
	}
	return nil
}

// refuseOperator fails where an operator would run the Migrations: it takes a set from kubectl.
func (o *action) refuseOperator(ctx context.Context, s *set) error {
	operated, err := o.operated(ctx, s.c)
	if err == nil && operated {
		return unfit("several Migrations in one file")
	}
	return err
}

func (s *set) standings() (all []migrationset.MemberProgress) {
	for _, m := range s.members {
		all = append(all, m.stand)
	}
	return all
}

func (s *set) names() (all []string) {
	for _, m := range s.members {
		all = append(all, m.Name)
	}
	return all
}

// spared says why apply leaves a member alone; empty if it has something to do.
func (s *set) spared(i int) string { return migrationset.Spared(s.standings(), i) }

func (s *set) look(ctx context.Context) (looks []*migration.Inspection, jobs []migrations.Job, err error) {
	for i, of := range s.members {
		j, err := s.newJob(s.c, of.DeepCopy(), of.dir)
		if err != nil {
			return nil, nil, err
		}
		jobs = append(jobs, j)
		if s.spared(i) != "" {
			looks = append(looks, nil)
			continue
		}
		look, err := s.examined(ctx, s.c, j)
		if err != nil {
			return nil, nil, fmt.Errorf("migration %s: %w", of.Name, ofJob(j, err))
		}
		look.Findings = migrationset.Ahead(look.Findings, s.names()[:i])
		looks = append(looks, &look)
	}
	return looks, jobs, nil
}

type setFinding struct {
	Migration        string `json:"migration,omitempty"`
	findings.Finding `       json:",inline"`
}

func (s *set) found(looks []*migration.Inspection) (all []setFinding) {
	add := func(name string, found findings.Findings) {
		for _, f := range found {
			all = append(all, setFinding{name, f})
		}
	}
	add("", s.between(looks))
	for i, look := range looks {
		if look != nil {
			add(s.members[i].Name, look.Findings)
		}
	}
	return all
}

func unnamed(all []setFinding) (out findings.Findings) {
	for _, f := range all {
		out = append(out, f.Finding)
	}
	return out
}

func (s *set) introduceSet(w io.Writer) error {
	rows := [][]string{{"ORDER", "MIGRATION", "MOVES", "STANDS"}}
	for i, m := range s.members {
		rows = append(rows, []string{fmt.Sprint(i + 1), m.Name, m.moves(), m.stands()})
	}
	return terminal.Table(w, rows)
}

func (m member) stands() string {
	switch {
	case m.stand.Phase != "":
		return string(m.stand.Phase)
	case m.stand.Begun():
		return "begun"
	}
	return "not begun"
}

func (s *set) each(order []member, do func(member) error) error {
	for i, of := range order {
		if s.format.Name != "json" {
			fmt.Fprintf(s.Err, "==> migration %s (%s)\n", of.Name, of.moves())
		}
		err := do(of)
		if err == nil {
			continue
		}
		var left []string
		for _, later := range order[i+1:] {
			left = append(left, later.Name)
		}
		return stopped(of.Name, err, left)
	}
	return nil
}

func stopped(name string, err error, left []string) error {
	if len(left) == 0 {
		return fmt.Errorf("the set stopped at migration %s: %w", name, err)
	}
	return fmt.Errorf("the set stopped at migration %s: %w; %s left as before: %s", name, err,
		english.PluralWord(len(left), "this one is", "these are"), strings.Join(left, ", "))
}

func (s *set) spare(of member, why string) {
	if !s.Settings.Quiet {
		fmt.Fprintf(s.Err, "migration %s: nothing to do: %s\n", of.Name, why)
	}
}

func oneOnly(flags ...string) error {
	for _, flag := range flags {
		if flag != "" {
			return &command.UsageError{
				Problem: flag + " is about one Migration, and the file holds several",
				Hint:    "leave it out, or run the command with a file that has that Migration alone",
			}
		}
	}
	return nil
}

func (o *applyOptions) applySet(ctx context.Context, s *set) error {
	if err := oneOnly(only(o.until != "", "--until"), only(o.plan != "", "--plan")); err != nil {
		return err
	}
	if blocking := s.between(nil).Blocking(); len(blocking) > 0 {
		return o.explain(&findings.BlockedError{Findings: blocking})
	}
	if err := s.fit(o.mayAcceptDowntime, canCall); err != nil {
		return err
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := o.Introduce(ctx, s.c); err != nil {
		return err
	}
	if err := errors.Join(s.introduceSet(o.Err), o.refuseOperator(ctx, s)); err != nil {
		return err
	}
	looks, _, err := s.look(ctx)
	if err != nil {
		return err
	}
	if blocking := unnamed(s.found(looks)).Blocking(); len(blocking) > 0 {
		return o.explain(&findings.BlockedError{Findings: blocking})
	}
	if o.AsksPeople() {
		if err := o.Confirm(o.yes, fmt.Sprintf("Apply these %d migrations to this cluster, one after the other?", len(s.members))); err != nil {
			return err
		}
	}
	o.yes = true // the answer is for all of them
	standings := s.standings()
	i := -1
	err = s.each(s.members, func(of member) error {
		i++
		if why := migrationset.Spared(standings, i); why != "" {
			s.spare(of, why)
			return nil
		}
		_, err := o.applyOne(ctx, of.given)
		return err
	})
	if err == nil && o.format.Name != "json" {
		o.Hint("when all is well, %s finish -f FILE; to go back, %s rollback -f FILE", o.Name, o.Name)
	}
	return err
}

func refused(name string, why []string, hint string) error {
	return &command.Failure{
		Problem: fmt.Sprintf("%s does not begin with any of the set: %s", name, strings.Join(why, ", ")),
		Hint:    hint + "; nothing was changed", Code: fault.ExitBlocked,
	}
}

func (o *rollbackOptions) rollbackSet(ctx context.Context, s *set) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := o.refuseOperator(ctx, s); err != nil {
		return err
	}
	var why []string
	var order []member
	for _, of := range slices.Backward(s.members) {
		if of.stand.Final {
			why = append(why, fmt.Sprintf("migration %s has passed the point of no return", of.Name))
		}
		if of.stand.Begun() {
			order = append(order, of)
		}
	}
	if len(why) > 0 {
		return refused("rollback", why, o.Name+" finish -f FILE ends what was begun")
	}
	if err := o.Introduce(ctx, s.c); err != nil {
		return err
	}
	if err := s.introduceSet(o.Err); err != nil {
		return err
	}
	if len(order) == 0 {
		return o.Done(o.format, "nothing to do")
	}
	if err := o.Confirm(o.yes, "Bring back what these migrations moved, the last one first?"); err != nil {
		return err
	}
	o.yes = true // the answer is for all of them
	return s.each(order, func(of member) error {
		late := o.late
		if of.Spec.ServiceCIDR == nil {
			late = ""
		}
		return o.rollbackOne(ctx, of.given, "", late)
	})
}

func (o *finishOptions) finishSet(ctx context.Context, s *set) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := o.refuseOperator(ctx, s); err != nil {
		return err
	}
	var why []string
	var order []member
	for _, of := range s.members {
		switch {
		case of.stand.Phase == v1alpha1.PhaseFinished:
		case of.stand.Phase == v1alpha1.PhaseMoved, of.stand.Final:
			order = append(order, of)
		default:
			why = append(why, fmt.Sprintf("migration %s is %s", of.Name, of.stands()))
		}
	}
	if len(why) > 0 {
		return refused("finish", why, o.Name+" apply -f FILE first")
	}
	if err := errors.Join(o.Introduce(ctx, s.c), s.introduceSet(o.Err)); err != nil {
		return err
	}
	if len(order) == 0 {
		return o.Done(o.format, "nothing to do")
	}
	for _, of := range order {
		if err := s.foresee(ctx, of); err != nil {
			return err
		}
	}
	if err := o.ConfirmByName(o.yes, "There is no way back from any of that. Finish?", "cluster", s.c.Name()); err != nil {
		return err
	}
	o.yes = true // the answer is for all of them
	return s.each(order, func(of member) error {
		return o.finishOne(ctx, of.given, "", o.leaveClients && of.Spec.ServiceCIDR != nil)
	})
}

func (s *set) foresee(ctx context.Context, of member) error {
	j, err := s.newJob(s.c, of.DeepCopy(), of.dir)
	if err != nil {
		return err
	}
	ahead, err := j.FinishPreview(ctx)
	if err != nil {
		return fmt.Errorf("migration %s: %w", of.Name, ofJob(j, err))
	}
	fmt.Fprintf(s.Err, "migration %s: %s\n", of.Name, strings.TrimSuffix(ahead.Question, " Finish?"))
	return nil
}
