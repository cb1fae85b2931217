package kubeproxy

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Roles are the rights that each purpose needs. deploy/rbac-kube-proxy.yaml grants exactly these.
func Roles() access.Roles {
	const file, name = "rbac-kube-proxy.yaml", "replumb-kube-proxy-"
	return access.Roles{
		{
			Name: name + "view", File: file, Purpose: access.View,
			Rules: slices.Concat(migration.ViewRules(), []access.Rule{migration.FrozenRule()}, viewRules()),
		},
		{
			Name: name + "operate", File: file, Purpose: access.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"Its holder can run pods of any image as root in the network of every node, and change DaemonSets in kube-system: treat who has it as an",
				"administrator of the cluster, and bind it for as long as a migration lasts.",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}
}

func viewRules() []access.Rule {
	return []access.Rule{
		{
			Why: "Nodes, Services, and how kube-proxy runs.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "list"),
				access.Grant("", "services", "", "list"),
				access.Grant("apps", "daemonsets", "", "list get"),
				access.In(metav1.NamespaceSystem, access.Grant("", "configmaps", "", "get")...),
			),
		},
		{
			Why: "Nodes and pods of kube-proxy, one by one, as a plan asks whose runs where.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "get"),
				access.In(metav1.NamespaceSystem, access.Grant("", "pods", "", "list")...),
			),
			Optional: true,
		},
	}
}

func operateRules() []access.Rule {
	return []access.Rule{
		{
			Why:    "Nodes say whose kube-proxy runs there.",
			Rights: access.Grant("", "nodes", "", "get patch"),
		},
		{
			Why: "The second DaemonSet and its configuration, and the cluster's own.",
			Rights: slices.Concat(
				access.In(metav1.NamespaceSystem, access.Grant("apps", "daemonsets", "", "create patch delete")...),
				access.In(metav1.NamespaceSystem, access.Grant("", "configmaps", "", "create patch delete")...),
				access.In(metav1.NamespaceSystem, access.Grant("", "pods", "", "list")...),
			),
		},
		{
			Why:    "What keeps, compares and cleans rules on nodes.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("", "pods", "", "list create delete")...),
		},
		{
			Why: "The Service that nodes are asked for, in front of the API servers.",
			Rights: slices.Concat(
				access.In(v1alpha1.SystemNamespace, access.Grant("", "services", "", "create delete")...),
				access.In(v1alpha1.SystemNamespace, access.Grant("discovery.k8s.io", "endpointslices", "", "create delete")...),
				migration.APIServerRights(),
			),
		},
		migration.PrivilegeRule(),
	}
}

// Roles are those that this Migration takes.
func (j *Job) Roles(context.Context) (access.Roles, error) { return j.roles(), nil }

func (j *Job) roles() access.Roles { return j.agents().Roles(Roles(), j.Migration) }

// toLook reports whether a right is needed to look at all.
func toLook(r access.Right) bool {
	return Roles().Of(access.View).Needs(r) && (r.Verb == "list" && r.Namespace == "" || r.Resource == "migrations")
}
