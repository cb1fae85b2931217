package podcidr

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/network/ranges/inventory"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const calicoGroup = "crd.projectcalico.org"

// Roles are the rights that each purpose needs. The files in deploy grant exactly these.
func Roles() cluster.Roles {
	const file, name = "rbac-pod-cidr.yaml", "replumb-pods-"
	return append(cluster.Roles{
		{
			Name: name + "view", File: file, Purpose: cluster.View,
			Rules: slices.Concat(migration.ViewRules(), []cluster.Rule{migration.FrozenRule()}, viewRules()),
			Danger: []string{
				"It reads all ConfigMaps, custom resources of the kinds below and the specs of all workloads, to find old ranges in them. Passwords that",
				"are in there, it reads.",
			},
		},
		{
			Name: name + "operate", File: file, Purpose: cluster.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"Who has it can run pods of any image with any ServiceAccount, where Pod Security lets it: restarts take patch of workloads in all",
				"namespaces. Treat who has it as an administrator of the cluster, and bind it for as long as a migration lasts.",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}, noderanges.Roles()...)
}

func viewRules() []cluster.Rule {
	return []cluster.Rule{
		{
			Why: "Nodes, namespaces, whose annotations may pin pools, and what nodes run.",
			Rights: slices.Concat(
				cluster.Grant("", "nodes", "", "list"),
				cluster.Grant("", "namespaces", "", "list"),
				rollout.ListRights(),
				cluster.Grant("batch", "jobs", "", "list"),
				cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
			),
		},
		{
			Why: "Cluster DNS and the API, which canaries ask.",
			Rights: slices.Concat(
				cluster.In(metav1.NamespaceSystem, cluster.Named(cluster.Grant("", "services", "", "get"), "kube-dns")...),
				cluster.In(metav1.NamespaceDefault, cluster.Named(cluster.Grant("", "services", "", "get"), "kubernetes")...),
			),
		},
		{
			Why: "How pods are connected, as kube-system and calico-system have it, and which range kubeadm has for them.",
			Rights: slices.Concat(
				cluster.In(metav1.NamespaceSystem, cluster.Named(cluster.Grant("", "configmaps", "", "get"),
					"calico-config", "ip-masq-agent", "azure-ip-masq-agent-config", "kubeadm-config")...),
				// The namespace is there with the operator alone, and without it no Role can be.
				cluster.Named(cluster.Grant("", "configmaps", "", "get"), "cni-config"),
			),
		},
		{
			Why: "Calico's pools, and what is left of the old one at the end.",
			Rights: slices.Concat(
				cluster.Grant(calicoGroup, "ippools", "", "get list"),
				cluster.Grant(calicoGroup, "ipamblocks", "", "list"),
				cluster.Grant(calicoGroup, "blockaffinities", "", "list"),
				cluster.Grant(calicoGroup, "ipamhandles", "", "list"),
				cluster.Grant(calicoGroup, "ipreservations", "", "get list"),
				cluster.Grant(calicoGroup, "clusterinformations", "", "list"),
			),
		},
		{
			Why:      "What is looked through for old ranges, and for what would stand in the way. Without one of these the outcome of its checks is unknown.",
			Optional: true,
			Rights: slices.Concat(
				cluster.Grant("", "configmaps", "", "list"),
				cluster.Grant("", "services", "", "list"),
				cluster.Grant("discovery.k8s.io", "endpointslices", "", "list"),
				cluster.ReferenceRights(),
				cluster.Grant("networking.k8s.io", "servicecidrs", "", "list"),
				cluster.Grant("operator.tigera.io", "installations", "", "list"),
			),
		},
		{
			Why:      "What stands behind admission webhooks and may not pause, and who decides how many pods it has.",
			Optional: true, Rights: spare.Rights(),
		},
		{
			Why:      "Cilium's pools, for replumb ranges, which reads all else with what is above.",
			Optional: true, Rights: inventory.CiliumRights(),
		},
	}
}

func operateRules() []cluster.Rule {
	return []cluster.Rule{
		{
			Why: "Calico's pools, and what is left of the old one at the end.",
			Rights: slices.Concat(
				cluster.Grant(calicoGroup, "ippools", "", "create patch delete"),
				cluster.Grant(calicoGroup, "ipamblocks", "", "update delete"),
				cluster.Grant(calicoGroup, "blockaffinities", "", "update delete"),
				cluster.Grant(calicoGroup, "ipamhandles", "", "update delete"),
				cluster.Grant(calicoGroup, "ipreservations", "", "create patch delete"),
			),
		},
		{Why: "Restarts.", Rights: rollout.RestartRights()},
		connectivity.Rule(),
		{
			Why:    "Addresses of tunnels, which Calico has on Nodes as annotations.",
			Rights: cluster.Grant("", "nodes", "status", "patch"),
		},
		{
			Why:    "Pods that keep the old addresses of tunnels, and carry packets while they get others.",
			Rights: cluster.In(v1alpha1.SystemNamespace, cluster.Grant("apps", "daemonsets", "", "create delete")...),
		},
		migration.PrivilegeRule(),
	}
}

// Roles are those that this Migration takes, which depends on how pods get addresses.
func (j *Job) Roles(ctx context.Context) (cluster.Roles, error) {
	s, err := j.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	return append(j.roles(), s.Roles()...), nil
}

// roles are those that this job takes, whatever has the ranges.
func (j *Job) roles() cluster.Roles { return j.agents().Roles(common(), j.Migration) }

func (j *Job) authorize(ctx context.Context) error {
	return j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook)
}

// common are the roles that do not depend on what has the ranges.
func common() cluster.Roles {
	return slices.DeleteFunc(Roles(), func(r cluster.Role) bool { return r.File == noderanges.RoleFile })
}

// toLook reports whether a right is needed to look at all.
func toLook(r cluster.Right) bool {
	view := common().Of(cluster.View)
	return view.Needs(r) && (r.Verb == "list" && r.Namespace == "" || r.Resource == "migrations")
}
