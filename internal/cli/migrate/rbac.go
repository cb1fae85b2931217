package migrate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	rbacv1 "k8s.io/api/rbac/v1"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/migrations"
)

type rbacOptions struct {
	source
	users, groups, purposes []string
}

// RBAC prints the roles that a migration takes.
func RBAC(a *command.App) *cobra.Command {
	o := &rbacOptions{source: source{App: a}}
	cmd := &cobra.Command{
		Use:   "rbac [KIND | -f FILE]",
		Short: "Print the roles that a migration takes",
		Long: `Print the roles of Kubernetes that a migration takes, and bindings to those who are named, for kubectl apply.
Nothing is written.

KIND is ` + strings.Join(commandKinds(), ", ") + `; its roles are those of the files in deploy.
With -f they are what the Migration in FILE takes in the cluster that it is for: without the agents' if there are
to be none, and of a mirror with the kinds by name that this cluster has.

Purposes are view (check, plan, status, report), operate (apply, rollback, finish and all others), agents (what it
takes to have agents run) and overlap (what keeps bridges in step between commands). Others are without-agents
(what agents do else), behind-cilium (what keeps the type of Services that have moved there), kubeadm-gates
(pods that pass gates) and kubeadm-etcd (a pod that etcd is reached through). Each of the others needs view as well.`,
		Example: a.Example(`
  replumb rbac services                                # the roles
  replumb rbac services --user jane                    # and bindings of all of them to jane
  replumb rbac services --for view --group developers
  replumb rbac -f mirror.yaml --user jane`),
		Args:              func(_ *cobra.Command, args []string) error { return o.checkArgs(args) },
		ValidArgsFunction: cobra.FixedCompletions(commandKinds(), cobra.ShellCompDirectiveNoFileComp),
		RunE: func(cmd *cobra.Command, args []string) error {
			roles, err := o.roles(cmd.Context(), args)
			if err != nil {
				return err
			}
			return o.print(roles)
		},
	}
	o.declareFiles(cmd)
	o.declareWithoutAgent(cmd)
	cmd.Flags().StringArrayVar(&o.users, "user", nil, "user to bind the roles to; may be repeated")
	cmd.Flags().StringArrayVar(&o.groups, "group", nil, "group to bind the roles to; may be repeated")
	cmd.Flags().StringSliceVar(&o.purposes, "for", nil,
		"purposes: view, operate, agents, overlap, without-agents, behind-cilium, kubeadm-gates, kubeadm-etcd (default all that it takes)")
	command.Complete(cmd, "for", "view", "operate", "agents", "overlap", "without-agents", "behind-cilium", "kubeadm-gates", "kubeadm-etcd")
	return cmd
}

func commandKinds() []string {
	var all []string
	for _, k := range migrations.All() {
		all = append(all, k.Command)
	}
	return all
}

func (o *rbacOptions) checkArgs(args []string) error {
	hint := "name one of " + strings.Join(commandKinds(), ", ") + ", or a Migration with -f FILE"
	switch {
	case len(args) > 1 || len(args) == 1 && o.files.Given():
		return &command.UsageError{Problem: "name one kind of migrations, or a file", Hint: hint}
	case len(args) == 0 && !o.files.Given():
		return &command.UsageError{Problem: "name a kind of migrations, or a file", Hint: hint}
	case len(args) == 1 && !slices.Contains(commandKinds(), args[0]):
		return &command.UsageError{Problem: fmt.Sprintf("kind %q is not known", args[0]), Hint: hint}
	}
	return nil
}

func (o *rbacOptions) roles(ctx context.Context, args []string) (access.Roles, error) {
	for _, k := range migrations.All() {
		if len(args) == 1 && k.Command == args[0] {
			return k.Roles, nil
		}
	}
	g, err := o.one("")
	if err != nil {
		return nil, err
	}
	j, _, err := o.open(ctx, g)
	if err != nil {
		return nil, err
	}
	roles, err := j.Roles(ctx)
	if err != nil {
		return nil, ofJob(j, err)
	}
	return roles, nil
}

func (o *rbacOptions) print(roles access.Roles) error {
	var purposes []access.Purpose
	for _, p := range o.purposes {
		if !slices.Contains(access.Purposes(), access.Purpose(p)) {
			return &command.UsageError{
				Problem: fmt.Sprintf("purpose %q is not known", p),
				Hint:    "use view, operate, agents, overlap, without-agents, behind-cilium, kubeadm-gates, kubeadm-etcd",
			}
		}
		purposes = append(purposes, access.Purpose(p))
	}
	if len(purposes) > 0 {
		roles = roles.Of(purposes...)
	}
	fmt.Fprint(o.Out, rbac.Namespaces())
	for _, role := range roles {
		fmt.Fprint(o.Out, rbac.Manifest(role))
		for _, user := range o.users {
			fmt.Fprint(o.Out, rbac.Bindings(role, rbacv1.Subject{Kind: rbacv1.UserKind, Name: user}))
		}
		for _, group := range o.groups {
			fmt.Fprint(o.Out, rbac.Bindings(role, rbacv1.Subject{Kind: rbacv1.GroupKind, Name: group}))
		}
	}
	return nil
}
