package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/reporting/terminal"
	"github.com/replumb/replumb/internal/spec"
	"github.com/replumb/replumb/internal/together"
)

// set is several Migrations of one cluster that a command is about, in the order in which they move.
type set struct {
	*app
	members []member
	c       *connection
}

// member is one Migration of a set. Its app is about that one alone: what is done with it is done as with any other.
type member struct {
	*app
	m *v1alpha1.Migration
	// have is what the cluster has of it, nil if nothing, and stand where it stands there.
	have  *v1alpha1.Migration
	stand together.Standing
}

// set is what the files hold, if it is more than one Migration; nil if it is not, which is for the command alone to read. What is wrong in
// any of them, or between them, is an error before a cluster is asked.
func (a *app) set() (*set, error) {
	if !a.input.given() || a.input.chosen != nil {
		return nil, nil
	}
	sources, err := a.sources()
	if err != nil {
		return nil, err
	}
	all, err := spec.ReadAll(sources...)
	if err != nil || len(all) == 1 {
		return nil, err
	}
	var migrations []*v1alpha1.Migration
	for _, g := range all {
		if err := a.wrong(g); err != nil {
			return nil, err
		}
		a.override(g.Migration)
		migrations = append(migrations, g.Migration)
	}
	if migrations, err = together.Order(migrations); err != nil {
		return nil, err
	}
	s := &set{app: a}
	for _, m := range migrations {
		i := slices.IndexFunc(all, func(g spec.Given) bool { return g.Migration == m })
		of := *a
		of.input.chosen = &all[i]
		s.members = append(s.members, member{app: &of, m: m})
	}
	return s, nil
}

// setOr is the set in the files, unless an argument names one of its Migrations, or there is one alone: then it is who is about that one.
func (a *app) setOr(args []string) (*set, *app, error) {
	s, err := a.set()
	if err != nil || s == nil || len(args) == 0 {
		return s, a, err
	}
	for _, of := range s.members {
		if of.m.Name == args[0] {
			return nil, of.app, nil
		}
	}
	return nil, nil, &UsageError{
		Problem: fmt.Sprintf(
			"the file has no migration %s",
			args[0],
		),
		Hint: "it has " + strings.Join(s.names(), ", ") + ": name one, or none for all",
	}
}

// wrong is everything that is wrong in one of several Migrations.
func (a *app) wrong(g spec.Given) error {
	if g.Migration == nil {
		return g.Err
	}
	a.dir = g.Source.Dir
	_, err := a.newJob(nil, g.Migration.DeepCopy())
	return spec.Join(g.Err, spec.About(g.Migration.Name, err))
}

// between are the findings of what one of the set means to another.
func (s *set) between(looks []*outlook) findings.Findings {
	var all []together.Member
	for i, m := range s.members {
		of := together.Member{Migration: m.m}
		if looks != nil && looks[i] != nil {
			of.Plan = looks[i].outstanding
		}
		all = append(all, of)
	}
	return findings.Run(together.Checks(), all)
}

// reach connects to the cluster, and sees where each Migration stands there. All of them must be the cluster's own.
func (s *set) reach(ctx context.Context) (err error) {
	if s.c, err = s.app.reach(ctx); err != nil {
		return err
	}
	for i := range s.members {
		of := &s.members[i]
		have, err := migration.Get(ctx, s.c.Cluster, of.m.Name)
		if err != nil {
			return err
		}
		for _, m := range []*v1alpha1.Migration{of.m, have} {
			if err := migration.Bound(ctx, s.c, m); err != nil {
				return err
			}
		}
		of.have, of.stand = have, together.Standing{Name: of.m.Name}
		if have != nil {
			of.stand.Phase, of.stand.Final = have.Status.Phase, have.Status.PointOfNoReturnPassed
			of.stand.Applied = have.Spec.Desired == v1alpha1.DesiredApplied
		}
	}
	return nil
}

// local fails where an operator would run the Migrations: it is given a set by kubectl, and goes through it with no one waiting.
func (s *set) local(ctx context.Context) error {
	operated, err := s.operated(ctx, s.c)
	if err == nil && operated {
		return &UnfitError{Flag: "several Migrations in one file"}
	}
	return err
}

func (s *set) standings() (all []together.Standing) {
	for _, m := range s.members {
		all = append(all, m.stand)
	}
	return all
}

func (s *set) names() (all []string) {
	for _, m := range s.members {
		all = append(all, m.m.Name)
	}
	return all
}

// spared says why apply leaves a member alone; empty if it has something to do.
func (s *set) spared(i int) string { return together.Spared(s.standings(), i) }

// look examines the cluster for each Migration that has something left to do; nil is for the others.
func (s *set) look(ctx context.Context) (looks []*outlook, jobs []job, err error) {
	for i, of := range s.members {
		j, err := of.newJob(s.c, of.m.DeepCopy())
		if err != nil {
			return nil, nil, err
		}
		jobs = append(jobs, j)
		if s.spared(i) != "" {
			looks = append(looks, nil)
			continue
		}
		look, err := of.examined(ctx, s.c, j)
		if err != nil {
			return nil, nil, fmt.Errorf("migration %s: %w", of.m.Name, ofJob(j, err))
		}
		look.findings = together.Ahead(look.findings, s.names()[:i])
		looks = append(looks, &look)
	}
	return looks, jobs, nil
}

// setFinding is a finding of one of several Migrations, or, where none is named, between them.
type setFinding struct {
	Migration        string `json:"migration,omitempty"`
	findings.Finding `       json:",inline"`
}

// found are the findings of all, each with the Migration that it is about.
func (s *set) found(looks []*outlook) (all []setFinding) {
	add := func(name string, found findings.Findings) {
		for _, f := range found {
			all = append(all, setFinding{name, f})
		}
	}
	add("", s.between(looks))
	for i, look := range looks {
		if look != nil {
			add(s.members[i].m.Name, look.findings)
		}
	}
	return all
}

// unnamed are findings without whom they are about.
func unnamed(all []setFinding) (out findings.Findings) {
	for _, f := range all {
		out = append(out, f.Finding)
	}
	return out
}

// introduceSet says what moves, in which order, and where each stands.
func (s *set) introduceSet(w io.Writer) error {
	rows := [][]string{{"ORDER", "MIGRATION", "MOVES", "STANDS"}}
	for i, m := range s.members {
		rows = append(rows, []string{fmt.Sprint(i + 1), m.m.Name, together.Moves(m.m), m.stands()})
	}
	return terminal.Table(w, rows)
}

// stands is where a Migration stands, for people.
func (m member) stands() string {
	switch {
	case m.stand.Phase != "":
		return string(m.stand.Phase)
	case m.stand.Begun():
		return "begun"
	}
	return "not begun"
}

// SetError says at which Migration a set stopped.
type SetError struct {
	Name string
	Err  error
	// Left are those that the command did not come to.
	Left []string
}

func (e *SetError) Error() string {
	text := fmt.Sprintf("the set stopped at migration %s: %v", e.Name, e.Err)
	if len(e.Left) > 0 {
		text += fmt.Sprintf(
			"; %s left as before: %s",
			english.PluralWord(len(e.Left), "this one is", "these are"),
			strings.Join(e.Left, ", "),
		)
	}
	return text
}

func (e *SetError) Unwrap() error { return e.Err }

// each does something with one Migration after the other, and ends with a *SetError at the first with which it does not get through.
func (s *set) each(order []member, do func(member) error) error {
	for i, of := range order {
		if s.output != "json" {
			fmt.Fprintf(s.err, "==> migration %s (%s)\n", of.m.Name, together.Moves(of.m))
		}
		err := do(of)
		if err == nil {
			continue
		}
		e := &SetError{Name: of.m.Name, Err: err}
		for _, later := range order[i+1:] {
			e.Left = append(e.Left, later.m.Name)
		}
		return e
	}
	return nil
}

// spare says why a Migration is left alone.
func (s *set) spare(of member, why string) {
	if !s.Settings.Quiet {
		fmt.Fprintf(s.err, "migration %s: nothing to do: %s\n", of.m.Name, why)
	}
}

// oneOnly refuses a flag that is about one Migration.
func oneOnly(flags ...string) error {
	for _, flag := range flags {
		if flag != "" {
			return &UsageError{
				Problem: flag + " is about one Migration, and the file holds several",
				Hint:    "leave it out, or run the command with a file that has that Migration alone",
			}
		}
	}
	return nil
}

// applySet moves what the Migrations move, one after the other. Nothing is written before all have been looked at.
func (a *app) applySet(ctx context.Context, s *set) error {
	if blocking := s.between(nil).Blocking(); len(blocking) > 0 {
		return a.explain(&findings.BlockedError{Findings: blocking})
	}
	for _, of := range s.members {
		if err := errors.Join(a.mayAcceptDowntime(of.m, nil), canCall(of.m, nil)); err != nil {
			return err
		}
	}
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := a.introduce(ctx, s.c); err != nil {
		return err
	}
	if err := errors.Join(s.introduceSet(a.err), s.local(ctx)); err != nil {
		return err
	}
	looks, _, err := s.look(ctx)
	if err != nil {
		return err
	}
	if blocking := unnamed(s.found(looks)).Blocking(); len(blocking) > 0 {
		return a.explain(&findings.BlockedError{Findings: blocking})
	}
	if a.asksPeople() {
		if err := a.confirm(fmt.Sprintf("Apply these %d migrations to this cluster, one after the other?", len(s.members))); err != nil {
			return err
		}
	}
	standings := s.standings()
	i := -1
	err = s.each(s.members, func(of member) error {
		i++
		if why := together.Spared(standings, i); why != "" {
			s.spare(of, why)
			return nil
		}
		of.yes = true
		return of.applyOne(ctx, applyFlags{})
	})
	if err == nil && a.output != "json" {
		a.hint("when all is well, %s finish -f FILE; to go back, %s rollback -f FILE", a.name, a.name)
	}
	return err
}

// SetRefusedError says that a command did not begin with any Migration of a set.
type SetRefusedError struct {
	Command string
	Why     []string
	Hint    string
}

func (e *SetRefusedError) Error() string {
	return fmt.Sprintf("%s does not begin with any of the set: %s", e.Command, strings.Join(e.Why, ", "))
}

func (e *SetRefusedError) Advice() string { return e.Hint + "; nothing was changed" }

func (*SetRefusedError) ExitCode() int { return fault.ExitBlocked }

// rollbackSet takes everything back, what moved last first.
func (a *app) rollbackSet(ctx context.Context, s *set, late string) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := s.local(ctx); err != nil {
		return err
	}
	refused := &SetRefusedError{Command: "rollback", Hint: a.name + " finish -f FILE ends what was begun"}
	var order []member
	for _, of := range slices.Backward(s.members) {
		if of.stand.Final {
			refused.Why = append(refused.Why, fmt.Sprintf("migration %s has passed the point of no return", of.m.Name))
		}
		if of.stand.Begun() {
			order = append(order, of)
		}
	}
	if len(refused.Why) > 0 {
		return refused
	}
	if err := a.introduce(ctx, s.c); err != nil {
		return err
	}
	if err := s.introduceSet(a.err); err != nil {
		return err
	}
	if len(order) == 0 {
		return a.done("nothing to do")
	}
	if err := a.confirm("Bring back what these migrations moved, the last one first?"); err != nil {
		return err
	}
	return s.each(order, func(of member) error {
		of.yes = true
		if of.m.Spec.ServiceCIDR == nil {
			return of.rollbackOne(ctx, nil, "")
		}
		return of.rollbackOne(ctx, nil, late)
	})
}

// finishSet passes the point of no return of each Migration, as soon as all have moved.
func (a *app) finishSet(ctx context.Context, s *set, leaveClients bool) error {
	if err := s.reach(ctx); err != nil {
		return err
	}
	if err := s.local(ctx); err != nil {
		return err
	}
	refused := &SetRefusedError{Command: "finish", Hint: a.name + " apply -f FILE first"}
	var order []member
	for _, of := range s.members {
		switch {
		case of.stand.Phase == v1alpha1.PhaseFinished:
		case of.stand.Phase == v1alpha1.PhaseMoved, of.stand.Final:
			order = append(order, of)
		default:
			refused.Why = append(refused.Why, fmt.Sprintf("migration %s is %s", of.m.Name, of.stands()))
		}
	}
	if len(refused.Why) > 0 {
		return refused
	}
	if err := errors.Join(a.introduce(ctx, s.c), s.introduceSet(a.err)); err != nil {
		return err
	}
	if len(order) == 0 {
		return a.done("nothing to do")
	}
	for _, of := range order {
		if err := s.foresee(ctx, of); err != nil {
			return err
		}
	}
	if err := a.confirm("There is no way back from any of that. Finish?"); err != nil {
		return err
	}
	return s.each(order, func(of member) error {
		of.yes = true
		return of.finishOne(ctx, nil, leaveClients && of.m.Spec.ServiceCIDR != nil)
	})
}

// foresee says what finish would make final of one Migration, or why it is too early.
func (s *set) foresee(ctx context.Context, of member) error {
	j, err := of.newJob(s.c, of.m.DeepCopy())
	if err != nil {
		return err
	}
	ahead, err := j.finishable(ctx)
	if err != nil {
		return fmt.Errorf("migration %s: %w", of.m.Name, ofJob(j, err))
	}
	fmt.Fprintf(s.err, "migration %s: %s\n", of.m.Name, strings.TrimSuffix(ahead.question, " Finish?"))
	return nil
}
