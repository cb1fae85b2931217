package nodes

import (
	"context"
	"slices"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Roles are the rights that each purpose needs. deploy/rbac-nodes.yaml grants exactly these.
func Roles() access.Roles {
	const file, name = "rbac-nodes.yaml", "replumb-nodes-"
	return access.Roles{
		{
			Name: name + "view", File: file, Purpose: access.View,
			Rules: slices.Concat(migration.ViewRules(), []access.Rule{migration.FrozenRule()}, viewRules()),
		},
		{
			Name: name + "operate", File: file, Purpose: access.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"Its holder can end every pod and delete every Node. With patch of deployments in all namespaces it runs pods of any image with any",
				"ServiceAccount, where Pod Security lets it. Treat who has it as an administrator of the cluster, and bind it for as long as a",
				"migration lasts.",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}
}

func viewRules() []access.Rule {
	return []access.Rule{
		{
			Why: "Nodes, and what runs on them.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "get list"),
				rollout.ListRights(),
				access.Grant("policy", "poddisruptionbudgets", "", "list"),
				access.Grant("", "services", "", "get list"),
			),
		},
		{
			Why: "What is bound to a place, and what is still attached to a node.",
			Rights: slices.Concat(
				access.Grant("", "persistentvolumes", "", "list"),
				access.Grant("", "persistentvolumeclaims", "", "list"),
				access.Grant("storage.k8s.io", "volumeattachments", "", "list"),
			),
		},
		{
			Why: "Policies that name the network of nodes.",
			Rights: slices.Concat(
				access.Grant("networking.k8s.io", "networkpolicies", "", "list"),
				access.Grant("crd.projectcalico.org", "networkpolicies", "", "list"),
				access.Grant("crd.projectcalico.org", "globalnetworkpolicies", "", "list"),
			),
		},
		{
			Why:      "What stands behind admission webhooks and may not pause, and who decides how many pods it has.",
			Optional: true, Rights: spare.Rights(),
		},
		{Why: "Which API servers serve.", Rights: migration.APIServerRights()},
	}
}

func operateRules() []access.Rule {
	return []access.Rule{
		{
			Why:    "Taints. A Node is deleted when its machine has ended.",
			Rights: access.Grant("", "nodes", "", "patch delete"),
		},
		{
			Why:    "externalTrafficPolicy, for as long as pods move.",
			Rights: access.Grant("", "services", "", "patch"),
		},
		{
			Why: "Evictions, and pods that spec.nodes.drain.force names. A Deployment with a single pod is restarted, which starts the new one first.",
			Rights: slices.Concat(
				access.Grant("", "pods", "eviction", "create"),
				access.Grant("", "pods", "", "delete"),
				rollout.TurnRights(),
				access.Grant("apps", "deployments", "", "get patch"),
				access.Grant("apps", "statefulsets", "", "get"),
				access.Grant("apps", "replicasets", "", "get"),
				access.Grant("batch", "jobs", "", "get"),
				access.Grant("", "persistentvolumeclaims", "", "get"),
			),
		},
		{
			Why: "Pods of DaemonSets, which leave their Services before their node ends: their labels, and slices that say that they end.",
			Rights: slices.Concat(
				access.Grant("", "pods", "", "patch"),
				access.Grant("discovery.k8s.io", "endpointslices", "", "list create delete"),
			),
		},
		connectivity.Rule(),
	}
}

func (j *Job) Roles(context.Context) (access.Roles, error) { return j.roles(), nil }

// toLook reports whether a right is needed to look at all.
func toLook(r access.Right) bool {
	return Roles().Of(access.View).Needs(r) && r.Namespace == "" &&
		(r.Verb == "list" && r.Group != "storage.k8s.io" && r.Group != "crd.projectcalico.org" || r.Resource == "migrations")
}

func (j *Job) roles() access.Roles { return j.agents().Roles(Roles(), j.Migration) }
