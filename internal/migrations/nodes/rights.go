package nodes

import (
	"context"
	"slices"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Roles are the rights that each purpose needs. deploy/rbac-nodes.yaml grants exactly these.
func Roles() cluster.Roles {
	const file, name = "rbac-nodes.yaml", "replumb-nodes-"
	return cluster.Roles{
		{
			Name: name + "view", File: file, Purpose: cluster.View,
			Rules: slices.Concat(migration.ViewRules(), []cluster.Rule{migration.FrozenRule()}, viewRules()),
		},
		{
			Name: name + "operate", File: file, Purpose: cluster.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"Who has it can end every pod and delete every Node. With patch of deployments in all namespaces it runs pods of any image with any",
				"ServiceAccount, where Pod Security lets it. Treat who has it as an administrator of the cluster, and bind it for as long as a",
				"migration lasts.",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}
}

func viewRules() []cluster.Rule {
	return []cluster.Rule{
		{
			Why: "Nodes, and what runs on them.",
			Rights: slices.Concat(
				cluster.Grant("", "nodes", "", "get list"),
				rollout.ListRights(),
				cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
				cluster.Grant("", "services", "", "get list"),
			),
		},
		{
			Why: "What is bound to a place, and what is still attached to a node.",
			Rights: slices.Concat(
				cluster.Grant("", "persistentvolumes", "", "list"),
				cluster.Grant("", "persistentvolumeclaims", "", "list"),
				cluster.Grant("storage.k8s.io", "volumeattachments", "", "list"),
			),
		},
		{
			Why: "Policies that name the network of nodes.",
			Rights: slices.Concat(
				cluster.Grant("networking.k8s.io", "networkpolicies", "", "list"),
				cluster.Grant("crd.projectcalico.org", "networkpolicies", "", "list"),
				cluster.Grant("crd.projectcalico.org", "globalnetworkpolicies", "", "list"),
			),
		},
		{
			Why:      "What stands behind admission webhooks and may not pause, and who decides how many pods it has.",
			Optional: true, Rights: spare.Rights(),
		},
		{Why: "Which API servers serve.", Rights: migration.APIServerRights()},
	}
}

func operateRules() []cluster.Rule {
	return []cluster.Rule{
		{
			Why:    "Taints. A Node is deleted when its machine has ended.",
			Rights: cluster.Grant("", "nodes", "", "patch delete"),
		},
		{
			Why:    "externalTrafficPolicy, for as long as pods move.",
			Rights: cluster.Grant("", "services", "", "patch"),
		},
		{
			Why: "Evictions, and pods that spec.nodes.drain.force names. A Deployment with a single pod is restarted, which starts the new one first.",
			Rights: slices.Concat(
				cluster.Grant("", "pods", "eviction", "create"),
				cluster.Grant("", "pods", "", "delete"),
				rollout.TurnRights(),
				cluster.Grant("apps", "deployments", "", "get patch"),
				cluster.Grant("apps", "statefulsets", "", "get"),
				cluster.Grant("apps", "replicasets", "", "get"),
				cluster.Grant("batch", "jobs", "", "get"),
				cluster.Grant("", "persistentvolumeclaims", "", "get"),
			),
		},
		{
			Why: "Pods of DaemonSets, which leave their Services before their node ends: their labels, and slices that say that they end.",
			Rights: slices.Concat(
				cluster.Grant("", "pods", "", "patch"),
				cluster.Grant("discovery.k8s.io", "endpointslices", "", "list create delete"),
			),
		},
		connectivity.Rule(),
	}
}

func (j *Job) Roles(context.Context) (cluster.Roles, error) { return j.roles(), nil }

// toLook reports whether a right is needed to look at all.
func toLook(r cluster.Right) bool {
	return Roles().Of(cluster.View).Needs(r) && r.Namespace == "" &&
		(r.Verb == "list" && r.Group != "storage.k8s.io" && r.Group != "crd.projectcalico.org" || r.Resource == "migrations")
}

func (j *Job) roles() cluster.Roles { return j.agents().Roles(Roles(), j.Migration) }
