package podcidr

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/disruption/spare"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
	"github.com/replumb/replumb/internal/network/ranges/used"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const calicoGroup = "crd.projectcalico.org"

// Roles are the rights that each purpose needs. The files in deploy grant exactly these.
func Roles() access.Roles {
	const file, name = "rbac-pod-cidr.yaml", "replumb-pods-"
	return append(access.Roles{
		{
			Name: name + "view", File: file, Purpose: access.View,
			Rules: slices.Concat(migration.ViewRules(), []access.Rule{migration.FrozenRule()}, viewRules()),
			Danger: []string{
				"It reads all ConfigMaps, custom resources of the kinds below and the specs of all workloads, to find old ranges in them. Passwords that",
				"are in there, it reads.",
			},
		},
		{
			Name: name + "operate", File: file, Purpose: access.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"Its holder can run pods of any image with any ServiceAccount, where Pod Security lets it: restarts take patch of workloads in all",
				"namespaces. Treat who has it as an administrator of the cluster, and bind it for as long as a migration lasts.",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}, slices.Concat(noderanges.Roles(), noderanges.PoolRoles())...)
}

func viewRules() []access.Rule {
	return []access.Rule{
		{
			Why: "Nodes, namespaces, whose annotations may pin pools, and what nodes run.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "list"),
				access.Grant("", "namespaces", "", "list"),
				rollout.ListRights(),
				access.Grant("batch", "jobs", "", "list"),
				access.Grant("policy", "poddisruptionbudgets", "", "list"),
			),
		},
		{
			Why: "Cluster DNS and the API, which canaries ask.",
			Rights: slices.Concat(
				access.In(metav1.NamespaceSystem, access.Named(access.Grant("", "services", "", "get"), "kube-dns")...),
				access.In(metav1.NamespaceDefault, access.Named(access.Grant("", "services", "", "get"), "kubernetes")...),
			),
		},
		{
			Why: "How pods are connected, as kube-system and calico-system have it, and which range kubeadm has for them.",
			Rights: slices.Concat(
				access.In(metav1.NamespaceSystem, access.Named(access.Grant("", "configmaps", "", "get"),
					"calico-config", "cilium-config", "ip-masq-agent", "azure-ip-masq-agent-config", "kubeadm-config")...),
				// The namespace is there with the operator alone, and without it no Role can be.
				access.Named(access.Grant("", "configmaps", "", "get"), "cni-config"),
			),
		},
		{
			Why: "Calico's pools, and what is left of the old one at the end.",
			Rights: slices.Concat(
				access.Grant(calicoGroup, "ippools", "", "get list"),
				access.Grant(calicoGroup, "ipamblocks", "", "list"),
				access.Grant(calicoGroup, "blockaffinities", "", "list"),
				access.Grant(calicoGroup, "ipamhandles", "", "list"),
				access.Grant(calicoGroup, "ipreservations", "", "get list"),
				access.Grant(calicoGroup, "clusterinformations", "", "list"),
			),
		},
		{
			Why:      "What is looked through for old ranges, and for what would stand in the way. Without one of these the outcome of its checks is unknown.",
			Optional: true,
			Rights: slices.Concat(
				access.Grant("", "configmaps", "", "list"),
				access.Grant("", "services", "", "list"),
				access.Grant("discovery.k8s.io", "endpointslices", "", "list"),
				inventory.ReferenceRights(),
				access.Grant("networking.k8s.io", "servicecidrs", "", "list"),
				access.Grant("operator.tigera.io", "installations", "", "list"),
			),
		},
		{
			Why:      "What stands behind admission webhooks and may not pause, and who decides how many pods it has.",
			Optional: true, Rights: spare.Rights(),
		},
		{
			Why:      "Ranges of nodes where Cilium's operator gives them, and its pools, which replumb ranges reads as well.",
			Optional: true, Rights: slices.Concat(access.Grant(cluster.CiliumGroup, "ciliumnodes", "", "list"), used.CiliumRights()),
		},
	}
}

func operateRules() []access.Rule {
	return []access.Rule{
		{
			Why: "Calico's pools, and what is left of the old one at the end.",
			Rights: slices.Concat(
				access.Grant(calicoGroup, "ippools", "", "create patch delete"),
				access.Grant(calicoGroup, "ipamblocks", "", "update delete"),
				access.Grant(calicoGroup, "blockaffinities", "", "update delete"),
				access.Grant(calicoGroup, "ipamhandles", "", "update delete"),
				access.Grant(calicoGroup, "ipreservations", "", "create patch delete"),
			),
		},
		{Why: "Restarts.", Rights: rollout.RestartRights()},
		connectivity.Rule(),
		{
			Why:    "Addresses of tunnels, which Calico has on Nodes as annotations.",
			Rights: access.Grant("", "nodes", "status", "patch"),
		},
		{
			Why:    "Pods that keep the old addresses of tunnels, and carry packets while they get others.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("apps", "daemonsets", "", "create delete")...),
		},
		migration.PrivilegeRule(),
	}
}

// Roles are those that this Migration takes, which depends on how pods get addresses.
func (j *Job) Roles(ctx context.Context) (access.Roles, error) {
	s, err := j.Inventory(ctx)
	if err != nil {
		return nil, err
	}
	return append(j.roles(), s.Roles()...), nil
}

// roles are those that this job takes, whatever has the ranges.
func (j *Job) roles() access.Roles { return j.agents().Roles(common(), j.Migration) }

func (j *Job) authorize(ctx context.Context) error {
	return j.Authorize(ctx, j.Tools.Cluster, j.roles(), toLook)
}

// common are the roles that do not depend on what has the ranges.
func common() access.Roles {
	return slices.DeleteFunc(Roles(), func(r access.Role) bool { return r.File == noderanges.RoleFile || r.File == noderanges.PoolRoleFile })
}

// toLook reports whether a right is needed to look at all.
func toLook(r access.Right) bool {
	view := common().Of(access.View)
	return view.Needs(r) && (r.Verb == "list" && r.Namespace == "" || r.Resource == "migrations")
}
