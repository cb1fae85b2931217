package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/installation"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Formats of what install prints.
const (
	formatYAML = "yaml"
	formatJSON = "json"
)

// installFlags are those of install.
type installFlags struct {
	image, namespace     string
	format               string
	secrets, purposes    []string
	replicas             int32
	crdsOnly, noOperator bool
	apply                bool
	wait                 time.Duration
}

func (a *app) install() *cobra.Command {
	var flags installFlags
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Print what replumb needs in a cluster, or install it",
		Args:  noArgs,
		Long: `Print the manifests of replumb for a cluster: the definitions of Migration and NodeReport, a policy that keeps an older build from
replacing them, the namespaces, and the operator, of two replicas, with its account and rights. Nothing is asked of a cluster and nothing
is written.

With --apply they are written by server-side apply, and it waits until the operator runs. Run again, with a later version for instance, it
brings the installation up to date. A cluster that has the definitions of a newer build is refused, and left as it is.

The operator has the rights of every kind of migration: treat who may write Migrations as an administrator of the cluster. Without it
(--no-operator) migrations run where their commands do, with the rights of who runs them; apply then needs no installation at all.`,
		Example: a.example(`
  replumb install | kubectl apply -f -          # print, look, apply
  replumb install --apply                       # the same, and wait until the operator runs
  replumb install --no-operator --rbac view | kubectl apply -f -
  replumb install --image registry.example.com/replumb:v1 --pull-secret registry | kubectl apply -f -`),
		RunE: func(cmd *cobra.Command, _ []string) error {
			options, err := a.installOptions(flags)
			if err != nil {
				return err
			}
			a.output = flags.format
			if flags.apply {
				return a.applyInstallation(cmd.Context(), options, flags.wait)
			}
			return a.printInstallation(options)
		},
	}
	f := cmd.Flags()
	f.StringVar(&flags.image, "image", "", "image that the operator runs (default: that of this release)")
	f.StringVar(&flags.namespace, "namespace", v1alpha1.SystemNamespace, "the namespace, which cannot be another")
	f.StringSliceVar(&flags.secrets, "pull-secret", nil,
		"Secret in "+v1alpha1.SystemNamespace+" that nodes pull the image with; may be repeated")
	f.Int32Var(&flags.replicas, "replicas", installation.Replicas, "replicas of the operator")
	f.BoolVar(&flags.crdsOnly, "crds-only", false, "the definitions alone, and the policy that guards them")
	f.BoolVar(&flags.noOperator, "no-operator", false, "leave the operator out, and its rights")
	f.StringSliceVar(&flags.purposes, "rbac", nil,
		"also roles for users of all kinds of migrations, for some of "+strings.Join(purposeNames(), ", ")+"; replumb rbac binds them")
	f.BoolVar(&flags.apply, "apply", false, "write to the cluster, and wait until the operator runs")
	f.DurationVar(&flags.wait, "timeout", installation.DefaultWait, "with --apply, how long the operator may take to come up")
	a.yesFlag(cmd)
	f.StringVarP(&flags.format, "output", "o", formatYAML, formatsPrefix+formatYAML+", "+formatJSON)
	return cmd
}

func purposeNames() []string {
	var all []string
	for _, p := range cluster.Purposes() {
		all = append(all, string(p))
	}
	return all
}

// installOptions are what the flags say, or what is wrong with them.
func (a *app) installOptions(flags installFlags) (installation.Options, error) {
	o := installation.Options{Scope: installation.Everything, Replicas: flags.replicas, Version: version}
	o.Image.Name, o.Image.Secrets = flags.image, flags.secrets
	if o.Image.Name == "" {
		o.Image.Name = image()
	} else {
		o.Version = tagged(o.Image.Name)
	}
	if err := flags.check(); err != nil {
		return o, err
	}
	switch {
	case flags.crdsOnly:
		o.Scope = installation.Definitions
	case flags.noOperator:
		o.Scope = installation.WithoutOperator
	}
	for _, p := range flags.purposes {
		o.Purposes = append(o.Purposes, cluster.Purpose(p))
	}
	return o, nil
}

// check is what is wrong with the flags, by themselves and migrationset.
func (flags installFlags) check() error {
	switch {
	case flags.format != formatYAML && flags.format != formatJSON:
		return &UsageError{
			Problem: fmt.Sprintf("output format %q is not known", flags.format), Hint: "use one of " + formatYAML + ", " + formatJSON,
		}
	case flags.namespace != v1alpha1.SystemNamespace:
		return &UsageError{
			Problem: fmt.Sprintf("replumb cannot be installed in namespace %s", flags.namespace),
			Hint:    "leave --namespace out: it is " + v1alpha1.SystemNamespace + " in every cluster, so that its roles can name it",
		}
	case flags.crdsOnly && flags.noOperator:
		return &UsageError{Problem: "--crds-only and --no-operator exclude each other", Hint: "--crds-only has no operator either"}
	case (flags.crdsOnly || flags.noOperator) && (flags.image != "" || len(flags.secrets) > 0):
		return &UsageError{Problem: "--image and --pull-secret are for the operator, which is left out", Hint: "leave them out as well"}
	case flags.crdsOnly && len(flags.purposes) > 0:
		return &UsageError{Problem: "--rbac needs the namespaces that --crds-only leaves out", Hint: "use --no-operator --rbac ..."}
	}
	for _, p := range flags.purposes {
		if !slices.Contains(purposeNames(), p) {
			return &UsageError{Problem: fmt.Sprintf("purpose %q is not known", p), Hint: "use " + strings.Join(purposeNames(), ", ")}
		}
	}
	return nil
}

// tagged is the version that the tag of an image stands for; empty if it is none: what is in an image of the user's own is not known.
func tagged(name string) string {
	name, _, _ = strings.Cut(name, "@")
	if i := strings.LastIndexByte(name, ':'); i >= 0 && release.MatchString(name[i+1:]) {
		return name[i+1:]
	}
	return ""
}

// unfit is what installation says of options, for who has given flags.
func unfit(err error) error {
	switch {
	case errors.Is(err, installation.ErrNoImage):
		return &UsageError{
			Problem: "this build of replumb was not released, so it knows no image for the operator",
			Hint:    "name one with --image (make image), or leave the operator out with --no-operator",
		}
	case errors.Is(err, installation.ErrNoReplicas):
		return &UsageError{Problem: err.Error(), Hint: "use --replicas 1 or more, or --no-operator"}
	}
	return err
}

func (a *app) printInstallation(o installation.Options) error {
	all, err := installation.Objects(o)
	if err != nil {
		return unfit(err)
	}
	text, err := installation.YAML(all)
	if a.output == formatJSON {
		text, err = installation.JSON(all)
	}
	if err != nil {
		return err
	}
	_, err = verbatim{a.out}.Write(text)
	return err
}

func (a *app) applyInstallation(ctx context.Context, o installation.Options, wait time.Duration) error {
	if _, err := installation.Objects(o); err != nil {
		return unfit(err)
	}
	c, err := a.reach(ctx)
	if err != nil {
		return err
	}
	if err := a.introduce(ctx, c); err != nil {
		return err
	}
	if a.asksPeople() {
		if err := a.confirm("Install replumb in this cluster?"); err != nil {
			return err
		}
	}
	i := &installation.Installer{Cluster: c.Cluster, Options: o, Wait: wait}
	if err := i.Run(ctx, a.runner()); err != nil {
		return administrative(err)
	}
	return a.done("replumb is installed")
}

// administrative is an error of a command for administrators of the cluster: no role of replumb has the rights it takes.
func administrative(err error) error {
	if !lacksRights(err) || cancelled(err) || fault.Advice(err) != "" {
		return err
	}
	return &fault.Hinted{Err: err, Hint: "it takes an administrator of the cluster (the role cluster-admin); no role of replumb is enough"}
}

func (a *app) uninstall() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take replumb out of a cluster",
		Args:  noArgs,
		Long: `Remove what install has made: the operator, rights, roles and bindings, the definitions, and with them all Migrations that are
over.

It refuses as long as a migration is under way, or bridges, reserved addresses or a freeze of one are there; finish or roll back first. A
namespace with backups, journals or anything of yours in it stays, and is named. Run again it carries on.`,
		Example: a.example("  replumb uninstall\n  replumb uninstall --yes   # where there is no terminal to ask on"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			c, err := a.reach(ctx)
			if err != nil {
				return err
			}
			if err := a.introduce(ctx, c); err != nil {
				return err
			}
			r := &installation.Remover{Cluster: c.Cluster}
			goes, err := r.Goes(ctx)
			if err != nil {
				return administrative(err)
			}
			for _, line := range goes {
				fmt.Fprintln(a.err, "goes with its definition:", line)
			}
			if err := a.confirm("Take replumb out of this cluster?"); err != nil {
				return err
			}
			if err := r.Run(ctx, a.runner()); err != nil {
				return administrative(err)
			}
			kept, err := r.Kept(ctx)
			for _, line := range kept {
				fmt.Fprintln(a.err, line)
			}
			if err != nil {
				return err
			}
			return a.done("replumb is uninstalled")
		},
	}
	a.outputFlag(cmd, "table", "json")
	a.yesFlag(cmd)
	return cmd
}
