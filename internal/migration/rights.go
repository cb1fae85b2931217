package migration

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
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
func ViewRules() []access.Rule {
	return []access.Rule{
		{
			Why: "What has been recorded of migrations, and whether its definition is there.",
			Rights: slices.Concat(
				access.Grant("replumb.dev", "migrations", "", "get list"),
				access.Named(access.Grant(definitionGroup, definitions, "", "get"), definition),
			),
		},
		{
			Why: "The namespace of what replumb keeps and runs, and the backups in it.",
			Rights: slices.Concat(
				access.Named(access.Grant("", "namespaces", "", "get"), v1alpha1.SystemNamespace, metav1.NamespaceSystem),
				access.In(v1alpha1.SystemNamespace, access.Grant("", "configmaps", "", "list")...),
			),
		},
		{
			Why: "Who works on the cluster at the moment.",
			Rights: access.In(
				metav1.NamespaceSystem,
				access.Named(access.Grant("coordination.k8s.io", "leases", "", "get"), lease.Name)...),
			Optional: true,
		},
		{
			Why:      "What happened, for report.",
			Rights:   access.In(v1alpha1.JournalNamespace, access.Grant("", "configmaps", "", "list")...),
			Optional: true,
		},
		{
			Why:      "What agents have reported.",
			Rights:   access.Grant("replumb.dev", "nodereports", "", "list"),
			Optional: true,
		},
	}
}

// OperateRules are what a run of any kind needs around its own steps.
func OperateRules() []access.Rule {
	return []access.Rule{
		{
			Why: "What is recorded of the migration, and its definition. No rule limits which definitions are created; others cannot be changed.",
			Rights: slices.Concat(
				access.Grant("replumb.dev", "migrations", "", "create update"),
				access.Grant("replumb.dev", "migrations", "status", "update"),
				access.Grant(definitionGroup, definitions, "", "create"),
				access.Named(access.Grant(definitionGroup, definitions, "", "update"), definition),
			),
		},
		{
			Why:    "Backups.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("", "configmaps", "", "create delete")...),
		},
		{
			Why: "The lock: one replumb at a time. No rule limits which Leases are created in kube-system; those of others cannot be changed.",
			Rights: access.In(metav1.NamespaceSystem, slices.Concat(
				access.Grant("coordination.k8s.io", "leases", "", "create"),
				access.Named(access.Grant("coordination.k8s.io", "leases", "", "update delete"), lease.Name),
			)...),
		},
		{
			Why:      "The journal, which report is made from.",
			Rights:   access.In(v1alpha1.JournalNamespace, access.Grant("", "configmaps", "", "create update")...),
			Optional: true,
		},
		{
			Why:      "Events about the Migration. Those of an object without a namespace are in default.",
			Rights:   access.In(metav1.NamespaceDefault, access.Grant("", "events", "", "create")...),
			Optional: true,
		},
	}
}

func policyRights(verb string) []access.Right {
	return append(access.Grant(admissionGroup, policies, "", verb), access.Grant(admissionGroup, bindings, "", verb)...)
}

// FreezeViewRule is what finding out about freezes takes.
func FreezeViewRule() access.Rule {
	return access.Rule{
		Why:    "Freezes that are there.",
		Rights: access.Named(policyRights("get"), freeze.Name, freeze.DeploysName),
	}
}

// FrozenRule is what it takes to see that deployments are frozen.
func FrozenRule() access.Rule {
	return access.Rule{
		Why:      "Whether the migration keeps others from deploying, also where it is not asked to any more.",
		Rights:   access.Named(policyRights("get"), freeze.DeploysName),
		Optional: true,
	}
}

// FreezeRule is for a freeze of that name, and unfreeze, beside the right to try a refused change.
func FreezeRule(name string) access.Rule {
	rights := slices.Concat(
		policyRights("create"),
		access.Named(policyRights("update"), name),
		access.Named(policyRights("delete"), freeze.Name, freeze.DeploysName),
	)
	return access.Rule{
		Why:    "The freeze. No rule limits which policies are created, and one can refuse any request to the cluster; those of others cannot be changed.",
		Rights: rights,
	}
}

// KeepTypeRule keeps the type of Services that keep an address as a load balancer's.
func KeepTypeRule() access.Rule {
	rights := slices.Concat(
		access.Grant(admissionGroup, "mutatingadmissionpolicies", "", "create"),
		access.Grant(admissionGroup, "mutatingadmissionpolicybindings", "", "create"),
	)
	for _, verb := range []string{"get", "update", "delete"} {
		rights = append(rights, access.Named(slices.Concat(
			access.Grant(admissionGroup, "mutatingadmissionpolicies", "", verb),
			access.Grant(admissionGroup, "mutatingadmissionpolicybindings", "", verb),
		), freeze.KeepTypeName)...)
	}
	return access.Rule{
		Why:    "Behind Cilium: what has Services stay of type LoadBalancer when a manifest says another one. No rule limits which policies are created.",
		Rights: rights,
	}
}

// GuardRule keeps addresses from others while API servers get another Service range.
func GuardRule() access.Rule {
	return access.Rule{
		Why:    "Where the Service range is a flag of the API servers: what keeps addresses from others while they get another one.",
		Rights: access.Named(slices.Concat(policyRights("get"), policyRights("update"), policyRights("delete")), freeze.GuardName),
	}
}

// PrivilegeRule is what Pod Security takes where pods that may do much are run.
func PrivilegeRule() access.Rule {
	return access.Rule{
		Why:    "Pod Security of the namespace of what replumb runs, and of no other.",
		Rights: access.Named(access.Grant("", "namespaces", "", "patch"), v1alpha1.SystemNamespace),
	}
}

// APIServerRights list the addresses of API servers: the endpoints of the Service kubernetes.
func APIServerRights() []access.Right {
	return access.In(metav1.NamespaceDefault, access.Grant("discovery.k8s.io", "endpointslices", "", "list")...)
}
