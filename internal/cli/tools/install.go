package tools

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/installation"
	"github.com/replumb/replumb/internal/kube/access"
)

// Formats of what install prints.
const (
	formatYAML = "yaml"
	formatJSON = "json"
)

type installOptions struct {
	*command.App
	format               command.Format
	yes                  bool
	image, namespace     string
	secrets, purposes    []string
	replicas             int32
	crdsOnly, noOperator bool
	apply                bool
	wait                 time.Duration
}

// Install prints what replumb needs in a cluster, or installs it.
func Install(a *command.App) *cobra.Command {
	o := &installOptions{App: a}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Print what replumb needs in a cluster, or install it",
		Args:  command.NoArgs,
		Long: `Print the manifests of replumb for a cluster: the definitions of Migration and NodeReport, a policy that keeps
an older build from replacing them, the namespaces, and the operator, of two replicas, with its account and
rights. Nothing is asked of a cluster and nothing is written.

With --apply they are written by server-side apply, and it waits until the operator runs. Run again, with a
later version for instance, it brings the installation up to date. A cluster that has the definitions of a newer
build is refused, and left as it is.

The operator has the rights of every kind of migration: treat who may write Migrations as an administrator of
the cluster. Without it (--no-operator) migrations run where their commands do, with the rights of who runs
them; apply then needs no installation at all.`,
		Example: a.Example(`
  replumb install | kubectl apply -f -          # print, look, apply
  replumb install --apply                       # the same, and wait until the operator runs
  replumb install --no-operator --rbac view | kubectl apply -f -
  replumb install --image registry.example.com/replumb:v1 --pull-secret registry | kubectl apply -f -`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			what, err := o.options()
			if err != nil {
				return err
			}
			if o.apply {
				return o.install(cmd.Context(), what)
			}
			return o.print(what)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.image, "image", "", "image that the operator runs (default: that of this release)")
	f.StringVar(&o.namespace, "namespace", v1alpha1.SystemNamespace, "the namespace, which cannot be another")
	f.StringSliceVar(&o.secrets, "pull-secret", nil,
		"Secret in "+v1alpha1.SystemNamespace+" that nodes pull the image with; may be repeated")
	f.Int32Var(&o.replicas, "replicas", installation.Replicas, "replicas of the operator")
	f.BoolVar(&o.crdsOnly, "crds-only", false, "the definitions alone, and the policy that guards them")
	f.BoolVar(&o.noOperator, "no-operator", false, "leave the operator out, and its rights")
	f.StringSliceVar(&o.purposes, "rbac", nil,
		"also roles for users of all kinds of migrations, for some of "+strings.Join(purposeNames(), ", ")+"; replumb rbac binds them")
	command.Complete(cmd, "rbac", purposeNames()...)
	f.BoolVar(&o.apply, "apply", false, "write to the cluster, and wait until the operator runs")
	f.DurationVar(&o.wait, "timeout", installation.DefaultWait, "with --apply, how long the operator may take to come up")
	command.YesFlag(cmd, &o.yes)
	f.StringVarP(&o.format.Name, "output", "o", formatYAML, command.FormatsPrefix+formatYAML+", "+formatJSON)
	return cmd
}

func purposeNames() []string {
	var all []string
	for _, p := range access.Purposes() {
		all = append(all, string(p))
	}
	return all
}

func (o *installOptions) options() (installation.Options, error) {
	to := installation.Options{Scope: installation.Everything, Replicas: o.replicas, Version: o.Build.Version}
	to.Image.Name, to.Image.Secrets = o.image, o.secrets
	if to.Image.Name == "" {
		to.Image.Name = o.Build.Image()
	} else {
		to.Version = tagged(to.Image.Name)
	}
	if err := o.check(); err != nil {
		return to, err
	}
	switch {
	case o.crdsOnly:
		to.Scope = installation.Definitions
	case o.noOperator:
		to.Scope = installation.WithoutOperator
	}
	for _, p := range o.purposes {
		to.Purposes = append(to.Purposes, access.Purpose(p))
	}
	return to, nil
}

func (o *installOptions) check() error {
	switch {
	case o.format.Name != formatYAML && o.format.Name != formatJSON:
		return &command.UsageError{
			Problem: fmt.Sprintf("output format %q is not known", o.format.Name), Hint: "use one of " + formatYAML + ", " + formatJSON,
		}
	case o.namespace != v1alpha1.SystemNamespace:
		return &command.UsageError{
			Problem: fmt.Sprintf("replumb cannot be installed in namespace %s", o.namespace),
			Hint:    "leave --namespace out: it is " + v1alpha1.SystemNamespace + " in every cluster, so that its roles can name it",
		}
	case o.crdsOnly && o.noOperator:
		return &command.UsageError{Problem: "--crds-only and --no-operator exclude each other", Hint: "--crds-only has no operator either"}
	case (o.crdsOnly || o.noOperator) && (o.image != "" || len(o.secrets) > 0):
		return &command.UsageError{Problem: "--image and --pull-secret are for the operator, which is left out", Hint: "leave them out as well"}
	case o.crdsOnly && len(o.purposes) > 0:
		return &command.UsageError{Problem: "--rbac needs the namespaces that --crds-only leaves out", Hint: "use --no-operator --rbac ..."}
	}
	for _, p := range o.purposes {
		if !slices.Contains(purposeNames(), p) {
			return &command.UsageError{Problem: fmt.Sprintf("purpose %q is not known", p), Hint: "use " + strings.Join(purposeNames(), ", ")}
		}
	}
	return nil
}

// tagged is the version that the tag of an image stands for; empty for an image of the user's own,
// whose content is not known.
func tagged(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i >= 0 && command.Released(name[i+1:]) {
		return name[i+1:]
	}
	return ""
}

func unfit(err error) error {
	switch {
	case errors.Is(err, installation.ErrNoImage):
		return &command.UsageError{
			Problem: "this build of replumb was not released, so it knows no image for the operator",
			Hint:    "name one with --image (make image), or leave the operator out with --no-operator",
		}
	case errors.Is(err, installation.ErrNoReplicas):
		return &command.UsageError{Problem: err.Error(), Hint: "use --replicas 1 or more, or --no-operator"}
	}
	return err
}

func (o *installOptions) print(what installation.Options) error {
	all, err := installation.Objects(what)
	if err != nil {
		return unfit(err)
	}
	text, err := installation.YAML(all)
	if o.format.Name == formatJSON {
		text, err = installation.JSON(all)
	}
	if err != nil {
		return err
	}
	_, err = o.Out.Verbatim().Write(text)
	return err
}

func (o *installOptions) install(ctx context.Context, what installation.Options) error {
	if _, err := installation.Objects(what); err != nil {
		return unfit(err)
	}
	c, err := o.Reach(ctx)
	if err != nil {
		return err
	}
	if err := o.Introduce(ctx, c); err != nil {
		return err
	}
	if o.AsksPeople() {
		if err := o.Confirm(o.yes, "Install replumb in this cluster?"); err != nil {
			return err
		}
	}
	i := &installation.Installer{Cluster: c.Cluster, Options: what, Wait: o.wait}
	if err := i.Run(ctx, o.Runner(o.format)); err != nil {
		return command.Administrative(err)
	}
	return o.Done(o.format, "replumb is installed")
}

// Uninstall takes replumb out of a cluster.
func Uninstall(a *command.App) *cobra.Command {
	var format command.Format
	yes := false
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take replumb out of a cluster",
		Args:  command.NoArgs,
		Long: `Remove what install has made: the operator, rights, roles and bindings, the definitions, and with them all
Migrations that are over.

It refuses as long as a migration is under way, or bridges, reserved addresses or a freeze of one are there;
finish or roll back first. A namespace with backups, journals or anything of yours in it stays, and is named.
Run again it carries on.`,
		Example: a.Example("  replumb uninstall\n  replumb uninstall --yes   # where there is no terminal to ask on"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := a.Reach(ctx)
			if err != nil {
				return err
			}
			if err := a.Introduce(ctx, c); err != nil {
				return err
			}
			r := &installation.Remover{Cluster: c.Cluster}
			goes, err := r.Goes(ctx)
			if err != nil {
				return command.Administrative(err)
			}
			for _, line := range goes {
				fmt.Fprintln(a.Err, "goes with its definition:", line)
			}
			if err := a.Confirm(yes, "Take replumb out of this cluster?"); err != nil {
				return err
			}
			if err := r.Run(ctx, a.Runner(format)); err != nil {
				return command.Administrative(err)
			}
			kept, err := r.Kept(ctx)
			for _, line := range kept {
				fmt.Fprintln(a.Err, line)
			}
			if err != nil {
				return err
			}
			return a.Done(format, "replumb is uninstalled")
		},
	}
	format.Declare(cmd, "table", "json")
	command.YesFlag(cmd, &yes)
	return cmd
}
