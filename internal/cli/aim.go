package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/spec"
)

// target is a migration that a command is about to go on with: rollback, finish or resume.
type target struct {
	migrations.Job
	c *connection
	// file is the Migration in the file, if there is one; its settings are recorded when the command begins.
	file *v1alpha1.Migration
}

// callsFlag is for commands that go on with a Migration that the cluster has.
func (a *app) callsFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.allowCalls, "allow-calls", "",
		"digest of the calls in the Migration that this machine may make (docs/hooks.md)")
}

// target finds the migration that a command is about, by its name or by the file, and reports which cluster it is in. Whatever it calls is
// in the file, or agreed to: otherwise it fails with a *ConsentError. Nothing is written.
func (a *app) target(ctx context.Context, args []string) (*target, error) {
	t := &target{}
	var name string
	var err error
	if len(args) == 1 {
		name = args[0]
	}
	if !a.input.given() && len(a.passEnv) > 0 {
		return nil, &UsageError{
			Problem: "--pass-env is for programs of the file",
			Hint:    "give the file with -f, or name them there as exec.env",
		}
	}
	if a.input.given() {
		if t.file, err = a.ofFile(name); err != nil {
			return nil, err
		}
		name = t.file.Name
	}
	have, c, err := a.recorded(ctx, name)
	if err != nil {
		return nil, err
	}
	t.c = c
	for _, m := range []*v1alpha1.Migration{t.file, have} {
		if err := migration.Bound(ctx, c, m); err != nil {
			return nil, err
		}
	}
	if err := a.introduce(ctx, c); err != nil {
		return nil, err
	}
	if t.file == nil {
		err = a.consent(ctx, c, have)
	} else {
		have, err = migration.Effective(have, t.file)
	}
	if err != nil {
		return nil, err
	}
	if t.Job, err = a.newJob(c, have); err != nil {
		return nil, err
	}
	return t, ofJob(t.Job, t.Open(ctx))
}

// ofFile is the Migration in the files. A name, if there is one, has to be its.
func (a *app) ofFile(name string) (*v1alpha1.Migration, error) {
	m, _, err := a.given()
	if err != nil {
		return nil, err
	}
	if name != "" && name != m.Name {
		return nil, &UsageError{
			Problem: fmt.Sprintf("the file is about migration %s, and not about %s", m.Name, name), Hint: "leave the name out, or the file",
		}
	}
	return m, nil
}

// begin records the settings in the file, and that the operator goes by its calls.
func (t *target) begin(ctx context.Context, a *app) error {
	if t.file == nil {
		return nil
	}
	changes, err := migration.Amend(ctx, t.c.Cluster, t.file)
	for _, change := range changes {
		fmt.Fprintln(a.err, "changed", change)
	}
	if err := client.IgnoreNotFound(err); err != nil {
		return err
	}
	return a.agreeToFile(ctx, t.c, t.file)
}

// introduce reports which cluster is about to be changed.
func (a *app) introduce(ctx context.Context, c *connection) error {
	line, err := c.Describe(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.err, "cluster:", line)
	return nil
}

// beginApply reports which cluster is about to be changed, and asks on a terminal. A script has decided by what it runs. Who may not even
// read the Migration gets no further than the check of rights that apply begins with, which names all that are missing.
func (a *app) beginApply(ctx context.Context, c *connection, j migrations.Job) error {
	m := j.About().Migration
	have, err := migration.Get(ctx, c.Cluster, m.Name)
	if apierrors.IsForbidden(err) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, m := range []*v1alpha1.Migration{m, have} {
		if err := migration.Bound(ctx, c, m); err != nil {
			return err
		}
	}
	if err := a.introduce(ctx, c); err != nil {
		return err
	}
	if a.asksPeople() {
		if err := a.confirm("Apply migration " + m.Name + " to this cluster?"); err != nil {
			return err
		}
	}
	if err := j.Open(ctx); err != nil {
		return ofJob(j, err)
	}
	return a.agreeToFile(ctx, c, m)
}

// ForeignPlanError says that a plan is of another cluster.
type ForeignPlanError struct {
	File     string
	Of, Here engine.Identity
}

func (e *ForeignPlanError) Error() string {
	if e.Of.UID == "" {
		return "the plan in " + e.File + " does not say of which cluster it is"
	}
	return fmt.Sprintf(
		"the plan in %s is of cluster %s with UID %q, and this is %s with UID %s",
		e.File,
		e.Of,
		e.Of.UID,
		e.Here,
		e.Here.UID,
	)
}

func (*ForeignPlanError) Advice() string {
	return "is this the cluster you mean? nothing was changed; plan -f FILE -o json > plan.json writes a plan of it"
}

func (*ForeignPlanError) ExitCode() int { return fault.ExitBlocked }

// ofCluster refuses a plan of another cluster.
func ofCluster(ctx context.Context, c *connection, file string, of engine.Identity) error {
	here, err := c.Identity(ctx)
	if err != nil {
		return err
	}
	if of.UID != here.UID {
		return &ForeignPlanError{File: file, Of: of, Here: here}
	}
	return nil
}

// ConsentError says that a Migration in the cluster has calls that the operator has not agreed to on this machine.
type ConsentError struct {
	Name, Digest string
	// Given is the digest that the operator has given instead, if any.
	Given string
	// Command with which to agree.
	Command string
}

func (e *ConsentError) Error() string {
	if e.Given != "" {
		return fmt.Sprintf("the calls of migration %s have the digest %s, and not the one that --allow-calls names", e.Name, e.Digest)
	}
	return fmt.Sprintf("migration %s in the cluster has calls that were not agreed to on this machine", e.Name)
}

func (e *ConsentError) Advice() string {
	return fmt.Sprintf(
		"nothing was changed; give your own file with -f FILE, or, if all of them are meant to be made, add --allow-calls %s",
		e.Digest,
	)
}

func (*ConsentError) ExitCode() int { return fault.ExitBlocked }

// consent makes sure that the operator has agreed to all that a Migration in the cluster calls, on this machine: by an apply of a
// file that calls the same, by its digest, or now. Others may write Migrations; they must not have this machine do things by that.
func (a *app) consent(ctx context.Context, c *connection, m *v1alpha1.Migration) error {
	calls := spec.Calls(m)
	digest := spec.Digest(calls)
	if digest == "" {
		return nil
	}
	of, err := c.Identity(ctx)
	if err != nil {
		return err
	}
	agreed := readAgreement(of.UID, m.Name)
	if agreed.Digest == digest {
		a.dir = agreed.Dir
		return nil
	}
	a.list(calls, digest)
	switch {
	case a.allowCalls == digest:
	case a.allowCalls != "" || a.yes || !a.asksPeople():
		return &ConsentError{Name: m.Name, Digest: digest, Given: a.allowCalls}
	default:
		if err := a.confirm("May this machine do all of that?"); err != nil {
			return &ConsentError{Name: m.Name, Digest: digest}
		}
	}
	a.keep(agreement{Cluster: of, Migration: m.Name, Digest: digest, Calls: texts(calls)})
	return nil
}

// list shows calls to people.
func (a *app) list(calls []spec.Call, digest string) {
	fmt.Fprintln(a.err, "calls of the Migration in the cluster:")
	for _, c := range calls {
		fmt.Fprintln(a.err, "   ", c)
	}
	fmt.Fprintln(a.err, "their digest is", digest)
}

// agreeToFile remembers what the operator's own file calls.
func (a *app) agreeToFile(ctx context.Context, c *connection, m *v1alpha1.Migration) error {
	calls := spec.Calls(m)
	if len(calls) == 0 {
		return nil
	}
	of, err := c.Identity(ctx)
	if err != nil {
		return err
	}
	a.keep(agreement{Cluster: of, Migration: m.Name, Digest: spec.Digest(calls), Dir: a.dir, Calls: texts(calls)})
	return nil
}

// keep writes an agreement. A machine that cannot keep it asks again.
func (a *app) keep(g agreement) {
	if err := g.write(); err != nil {
		fmt.Fprintf(
			a.err,
			"warning: what this migration may call is not remembered, and later commands need -f FILE: %v\n",
			errors.Unwrap(err),
		)
	}
}

func texts(calls []spec.Call) []string {
	var all []string
	for _, c := range calls {
		all = append(all, c.String())
	}
	return all
}
