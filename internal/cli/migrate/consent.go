package migrate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/spec"
)

type resolved struct {
	migrations.Job
	c *command.Connection
	// file is the Migration in the file; nil for none. begin records its settings.
	file *given
}

// resolve finds the migration of a command, in the file or by its name, and prints its cluster.
// Calls that are neither in the file nor agreed to are a *ConsentError.
func (o *action) resolve(ctx context.Context, file *given, name string) (*resolved, error) {
	if file == nil && len(o.passEnv) > 0 {
		return nil, &command.UsageError{
			Problem: "--pass-env is for programs of the file", Hint: "give the file with -f, or name them there as exec.env",
		}
	}
	t := &resolved{file: file}
	if file != nil {
		name = file.Name
	}
	have, c, err := o.recorded(ctx, name)
	if err != nil {
		return nil, err
	}
	t.c = c
	all := []*v1alpha1.Migration{have}
	if file != nil {
		all = []*v1alpha1.Migration{file.Migration, have}
	}
	for _, m := range all {
		if err := migration.Bound(ctx, c, m); err != nil {
			return nil, err
		}
	}
	if err := o.Introduce(ctx, c); err != nil {
		return nil, err
	}
	var dir string
	if file == nil {
		dir, err = o.consent(ctx, c, have)
	} else {
		dir = file.dir
		have, err = migration.Effective(have, file.Migration)
	}
	if err != nil {
		return nil, err
	}
	if t.Job, err = o.newJob(c, have, dir); err != nil {
		return nil, err
	}
	return t, ofJob(t.Job, t.Open(ctx))
}

func (t *resolved) begin(ctx context.Context, a *action) error {
	if t.file == nil {
		return nil
	}
	changes, err := migration.Amend(ctx, t.c.Cluster, t.file.Migration)
	for _, change := range changes {
		fmt.Fprintln(a.Err, "changed", change)
	}
	if err := client.IgnoreNotFound(err); err != nil {
		return err
	}
	return a.agreeToFile(ctx, t.c, t.file.Migration, t.file.dir)
}

// beginApply prints which cluster is about to be changed, and asks on a terminal. Without the right
// to read the Migration it goes on: the check of rights names all that are missing.
func (o *action) beginApply(ctx context.Context, c *command.Connection, j migrations.Job, g *given) error {
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
	if err := o.Introduce(ctx, c); err != nil {
		return err
	}
	if o.AsksPeople() {
		if err := o.Confirm(o.yes, "Apply migration "+m.Name+" to this cluster?"); err != nil {
			return err
		}
	}
	if err := j.Open(ctx); err != nil {
		return ofJob(j, err)
	}
	return o.agreeToFile(ctx, c, m, g.dir)
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
	return fmt.Sprintf("the plan in %s is of cluster %s with UID %q, and this is %s with UID %s", e.File, e.Of,
		e.Of.UID, e.Here, e.Here.UID)
}

func (*ForeignPlanError) Advice() string {
	return "is this the cluster you mean? nothing was changed; plan -f FILE -o json > plan.json writes a plan of it"
}

func (*ForeignPlanError) ExitCode() int { return fault.ExitBlocked }

func ofCluster(ctx context.Context, c *command.Connection, file string, of engine.Identity) error {
	here, err := c.Identity(ctx)
	if err != nil {
		return err
	}
	if of.UID != here.UID {
		return &ForeignPlanError{File: file, Of: of, Here: here}
	}
	return nil
}

// ConsentError says that a Migration in the cluster has calls that were not agreed to on this
// machine.
type ConsentError struct {
	Name, Digest string
	// Given is the digest given instead; empty for none.
	Given   string
	Command string
}

func (e *ConsentError) Error() string {
	if e.Given != "" {
		return fmt.Sprintf("the calls of migration %s have the digest %s, and not the one that --allow-calls names", e.Name, e.Digest)
	}
	return fmt.Sprintf("migration %s in the cluster has calls that were not agreed to on this machine", e.Name)
}

func (e *ConsentError) Advice() string {
	return fmt.Sprintf("nothing was changed; give your own file with -f FILE, or, if all of them are meant to be made, add --allow-calls %s",
		e.Digest)
}

func (*ConsentError) ExitCode() int { return fault.ExitBlocked }

// consent refuses calls of a Migration in the cluster that were not agreed to on this machine:
// others may write Migrations, and must not make this machine do things by that.
func (o *action) consent(ctx context.Context, c *command.Connection, m *v1alpha1.Migration) (dir string, err error) {
	calls := spec.Calls(m)
	digest := spec.Digest(m)
	if digest == "" {
		return "", nil
	}
	of, err := c.Identity(ctx)
	if err != nil {
		return "", err
	}
	agreed := readAgreement(of.UID, m.Name)
	if agreed.Digest == digest {
		return agreed.Dir, nil
	}
	o.list(calls, digest)
	switch {
	case o.allowCalls == digest:
	case o.allowCalls != "" || o.yes || !o.AsksPeople():
		return "", &ConsentError{Name: m.Name, Digest: digest, Given: o.allowCalls}
	default:
		if err := o.Confirm(o.yes, "May this machine do all of that?"); err != nil {
			return "", &ConsentError{Name: m.Name, Digest: digest}
		}
	}
	o.keep(agreement{Cluster: of, Migration: m.Name, Digest: digest, Calls: lists.Strings(calls)})
	return "", nil
}

func (o *action) list(calls []spec.Call, digest string) {
	fmt.Fprintln(o.Err, "calls of the Migration in the cluster:")
	for _, c := range calls {
		fmt.Fprintln(o.Err, "   ", c)
	}
	fmt.Fprintln(o.Err, "their digest is", digest)
}

func (o *action) agreeToFile(ctx context.Context, c *command.Connection, m *v1alpha1.Migration, dir string) error {
	calls := spec.Calls(m)
	if len(calls) == 0 {
		return nil
	}
	of, err := c.Identity(ctx)
	if err != nil {
		return err
	}
	o.keep(agreement{Cluster: of, Migration: m.Name, Digest: spec.Digest(m), Dir: dir, Calls: lists.Strings(calls)})
	return nil
}

// keep writes an agreement. A machine that cannot, asks again.
func (o *action) keep(g agreement) {
	if err := g.write(); err != nil {
		fmt.Fprintf(o.Err,
			"warning: what this migration may call is not remembered, and later commands need -f FILE: %v\n",
			errors.Unwrap(err))
	}
}

// agreement is to the calls of a migration from this machine, in a file of the user's own: writers
// of Migrations in the cluster must not be able to write it.
type agreement struct {
	Cluster   engine.Identity `json:"cluster"`
	Migration string          `json:"migration"`
	Digest    string          `json:"digest"`
	// Dir is the folder of the file with the calls, in which relative paths begin.
	Dir   string    `json:"dir,omitempty"`
	Calls []string  `json:"calls"`
	At    time.Time `json:"at"`
}

// agreementFile hashes names: they are the cluster's, and must not become part of a path.
func agreementFile(uid, name string) (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(uid + "/" + name))
	return filepath.Join(dir, "replumb", "calls", hex.EncodeToString(sum[:16])+".json"), nil
}

func readAgreement(uid, name string) (g agreement) {
	file, err := agreementFile(uid, name)
	if err != nil {
		return agreement{}
	}
	body, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(body, &g) != nil || g.Cluster.UID != uid || g.Migration != name {
		return agreement{}
	}
	return g
}

func (g agreement) write() (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("remembering calls: %w", err)
		}
	}()
	file, err := agreementFile(g.Cluster.UID, g.Migration)
	if err != nil {
		return err
	}
	g.At = time.Now().UTC().Truncate(time.Second)
	body, err := json.MarshalIndent(g, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".new-*") // 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}
