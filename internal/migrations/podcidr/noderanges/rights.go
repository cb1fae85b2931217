package noderanges

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/network/podnetwork"
)

// RoleFile is the file in deploy that has the roles beside those of all migrations of pods.
const RoleFile = "rbac-pod-cidr-nodes.yaml"

// Roles are what is needed beside those of all migrations of pods.
func Roles() access.Roles {
	const name = "replumb-pods-on-nodes-"
	return access.Roles{
		{
			Name: name + "view", File: RoleFile, Purpose: access.View,
			Rules: []access.Rule{{
				Why: "How controller managers are configured, and how many API servers there are.",
				Rights: slices.Concat(
					access.In(metav1.NamespaceSystem, access.Named(access.Grant("", "configmaps", "", "get"), "kubeadm-config")...),
					migration.APIServerRights(),
				),
			}},
		},
		{
			Name: name + "operate", File: RoleFile, Purpose: access.Operate, Rules: operateRules(),
			Danger: []string{"Its holder can delete every Node, and make one of any name."},
		},
		kubeadmgate.Role(name+"kubeadm-gates", RoleFile),
	}
}

// PoolRoleFile is the file in deploy for clusters where Cilium's operator gives nodes their ranges.
const PoolRoleFile = "rbac-pod-cidr-cilium.yaml"

// PoolRoles are what is needed there beside those of all migrations of pods.
func PoolRoles() access.Roles {
	return access.Roles{{
		Name: "replumb-pods-on-cilium-operate", File: PoolRoleFile, Purpose: access.Operate,
		Danger: []string{"Its holder can end every pod, and have Cilium lead any addresses to any node."},
		Rules: []access.Rule{
			{
				Why: "The pool of Cilium's operator.",
				Rights: slices.Concat(
					access.In(metav1.NamespaceSystem, access.Named(access.Grant("", "configmaps", "", "patch"), podnetwork.CiliumConfig)...),
					access.Grant(cluster.CiliumGroup, "ciliumpodippools", "", "get patch"),
				),
			},
			{
				Why:    "Ranges of nodes, and which they had before.",
				Rights: slices.Concat(access.Grant(cluster.CiliumGroup, "ciliumnodes", "", "get create patch"), access.Grant("", "nodes", "", "get patch")),
			},
			{
				Why:    "Cilium's operator and agents, which learn ranges when they start.",
				Rights: access.Grant("", "pods", "", "delete"),
			},
		},
	}}
}

func operateRules() []access.Rule {
	return []access.Rule{
		{
			Why:    "Nodes are removed and created again with another range, and one is made to find out what controller managers do.",
			Rights: access.Grant("", "nodes", "", "get create patch delete"),
		},
		{
			Why:    "A Node is kept here while it is gone.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("", "configmaps", "", "get update")...),
		},
		{
			Why: "What a Node owns gets the new Node as its owner: mirror pods, its Lease, its CSINode.",
			Rights: slices.Concat(
				access.Grant("", "pods", "", "patch"),
				access.In("kube-node-lease", access.Grant("coordination.k8s.io", "leases", "", "get patch")...),
				access.Grant("storage.k8s.io", "csinodes", "", "get patch"),
			),
		},
		{
			Why:    "Agents of the pod network, which learn the range of a Node when they start.",
			Rights: access.Grant("", "pods", "", "delete"),
		},
		{
			Why:    "Whether a range is exhausted.",
			Rights: access.In(metav1.NamespaceDefault, access.Grant("", "events", "", "list")...),
		},
	}
}
