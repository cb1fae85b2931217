package migration

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/safety/lease"
)

const (
	definitionGroup = "apiextensions.k8s.io"
	definitions     = "customresourcedefinitions"
	definition      = "migrations.replumb.dev"

	admissionGroup = "admissionregistration.k8s.io"
	policies       = "validatingadmissionpolicies"
	bindings       = "validatingadmissionpolicybindings"
)

// ViewRules are what commands that write nothing need, whatever the kind of the migration.
func ViewRules() []cluster.Rule {
	return []cluster.Rule{
		{
			Why: "What has been recorded of migrations, and whether its definition is there.",
			Rights: slices.Concat(
				cluster.Grant("replumb.dev", "migrations", "", "get list"),
				cluster.Named(cluster.Grant(definitionGroup, definitions, "", "get"), definition),
			),
		},
		{
			Why: "The namespace of what replumb keeps and runs, and the backups in it.",
			Rights: slices.Concat(
				cluster.Named(cluster.Grant("", "namespaces", "", "get"), v1alpha1.SystemNamespace, metav1.NamespaceSystem),
				cluster.In(v1alpha1.SystemNamespace, cluster.Grant("", "configmaps", "", "list")...),
			),
		},
		{
			Why: "Who works on the cluster at the moment.",
			Rights: cluster.In(
				metav1.NamespaceSystem,
				cluster.Named(cluster.Grant("coordination.k8s.io", "leases", "", "get"), lease.Name)...),
			Optional: true,
		},
		{
			Why:      "What happened, for report.",
			Rights:   cluster.In(v1alpha1.JournalNamespace, cluster.Grant("", "configmaps", "", "list")...),
			Optional: true,
		},
		{
			Why:      "What agents have reported.",
			Rights:   cluster.Grant("replumb.dev", "nodereports", "", "list"),
			Optional: true,
		},
	}
}

// OperateRules are what a run of any kind needs around its own steps.
func OperateRules() []cluster.Rule {
	return []cluster.Rule{
		{
			Why: "What is recorded of the migration, and its definition. No rule limits which definitions are created; others cannot be changed.",
			Rights: slices.Concat(
				cluster.Grant("replumb.dev", "migrations", "", "create update"),
				cluster.Grant("replumb.dev", "migrations", "status", "update"),
				cluster.Grant(definitionGroup, definitions, "", "create"),
				cluster.Named(cluster.Grant(definitionGroup, definitions, "", "update"), definition),
			),
		},
		{
			Why:    "Backups.",
			Rights: cluster.In(v1alpha1.SystemNamespace, cluster.Grant("", "configmaps", "", "create delete")...),
		},
		{
			Why: "The lock: one replumb at a time. No rule limits which Leases are created in kube-system; those of others cannot be changed.",
			Rights: cluster.In(metav1.NamespaceSystem, slices.Concat(
				cluster.Grant("coordination.k8s.io", "leases", "", "create"),
				cluster.Named(cluster.Grant("coordination.k8s.io", "leases", "", "update delete"), lease.Name),
			)...),
		},
		{
			Why:      "The journal, which report is made from.",
			Rights:   cluster.In(v1alpha1.JournalNamespace, cluster.Grant("", "configmaps", "", "create update")...),
			Optional: true,
		},
		{
			Why:      "Events about the Migration. Those of an object without a namespace are in default.",
			Rights:   cluster.In(metav1.NamespaceDefault, cluster.Grant("", "events", "", "create")...),
			Optional: true,
		},
	}
}

func policyRights(verb string) []cluster.Right {
	return append(cluster.Grant(admissionGroup, policies, "", verb), cluster.Grant(admissionGroup, bindings, "", verb)...)
}

// FreezeViewRule is what finding out about freezes takes.
func FreezeViewRule() cluster.Rule {
	return cluster.Rule{
		Why:    "Freezes that are there.",
		Rights: cluster.Named(policyRights("get"), freeze.Name, freeze.DeploysName),
	}
}

// FrozenRule is what it takes to see that deployments are frozen.
func FrozenRule() cluster.Rule {
	return cluster.Rule{
		Why:      "Whether the migration keeps others from deploying, also where it is not asked to any more.",
		Rights:   cluster.Named(policyRights("get"), freeze.DeploysName),
		Optional: true,
	}
}

// FreezeRule is for a freeze of that name, and unfreeze, beside the right to try a refused change.
func FreezeRule(name string) cluster.Rule {
	rights := slices.Concat(
		policyRights("create"),
		cluster.Named(policyRights("update"), name),
		cluster.Named(policyRights("delete"), freeze.Name, freeze.DeploysName),
	)
	return cluster.Rule{
		Why:    "The freeze. No rule limits which policies are created, and one can refuse any request to the cluster; those of others cannot be changed.",
		Rights: rights,
	}
}

// GuardRule keeps addresses from others while API servers get another Service range.
func GuardRule() cluster.Rule {
	return cluster.Rule{
		Why:    "Where the Service range is a flag of the API servers: what keeps addresses from others while they get another one.",
		Rights: cluster.Named(slices.Concat(policyRights("get"), policyRights("update"), policyRights("delete")), freeze.GuardName),
	}
}

// PrivilegeRule is what Pod Security takes where pods that may do much are run.
func PrivilegeRule() cluster.Rule {
	return cluster.Rule{
		Why:    "Pod Security of the namespace of what replumb runs, and of no other.",
		Rights: cluster.Named(cluster.Grant("", "namespaces", "", "patch"), v1alpha1.SystemNamespace),
	}
}

// APIServerRights list the addresses of API servers: the endpoints of the Service kubernetes.
func APIServerRights() []cluster.Right {
	return cluster.In(metav1.NamespaceDefault, cluster.Grant("discovery.k8s.io", "endpointslices", "", "list")...)
}
