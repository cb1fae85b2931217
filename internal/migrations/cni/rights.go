package cni

import (
	"context"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// The reasons of rules about manifests.
const (
	manifestsHold = "What manifests of networks hold, in whichever namespace they name."
	manifestsAre  = "What manifests consist of, and where kube-proxy and networks are configured."
)

// Roles are the rights that each purpose needs, whichever networks it is about.
// deploy/rbac-cni.yaml grants exactly these. Objects of further kinds in the manifests take
// rights to these; no one can give roles more rights than they have.
func Roles() access.Roles {
	const file, name = "rbac-cni.yaml", "replumb-networks-"
	return access.Roles{
		{Name: name + "view", File: file, Purpose: access.View, Rules: slices.Concat(migration.ViewRules(), viewRules())},
		{
			Name: name + "operate", File: file, Purpose: access.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"This is an administrator of the cluster by nature: networks are DaemonSets, roles and definitions of kinds of their own, which manifests",
				"name as they like. Who applies manifests needs rights to all that is in them as well, and every right that roles in them grant, or",
				"the verb escalate. Bind it for as long as a migration lasts.",
			},
		},
		{
			Name: name + roleInPlace, File: file, Purpose: access.Operate, Rules: inPlaceRules(),
			Danger: []string{
				"Mode InPlace and spec.cni.again take it. Its holder can empty nodes, and change workloads in all namespaces.",
			},
		},
		{
			Name: name + roleProxy, File: file, Purpose: access.Operate, Rules: proxyRules(),
			Danger: []string{
				"Only spec.cni.kubeProxy: Replace takes it. Its holder can change what Cilium's agents do on single nodes.",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}
}

// The ends of the names of roles that not every migration takes. Recreating all pods once more
// takes the first as well.
const (
	roleInPlace = "in-place"
	roleProxy   = "kube-proxy"
)

func proxyRules() []access.Rule {
	return []access.Rule{
		{
			Why:    "What has Cilium's agents of single nodes take the place of kube-proxy.",
			Rights: access.In(metav1.NamespaceSystem, access.Grant("cilium.io", "ciliumnodeconfigs", "", "get create patch delete")...),
		},
		{
			Why: "The Service that nodes are asked for, in front of the API servers.",
			Rights: slices.Concat(
				access.In(v1alpha1.SystemNamespace, access.Grant("", "services", "", "create delete")...),
				access.In(v1alpha1.SystemNamespace, access.Grant("discovery.k8s.io", "endpointslices", "", "create delete")...),
				migration.APIServerRights(),
			),
		},
	}
}

func inPlaceRules() []access.Rule {
	return []access.Rule{
		{
			Why:    "Nodes are cordoned, and say which network they give to pods.",
			Rights: access.Grant("", "nodes", "", "get patch"),
		},
		{
			Why: "Pods leave their node by eviction, within PodDisruptionBudgets; a Deployment with a single pod is restarted by rollout.",
			Rights: slices.Concat(
				rollout.ListRights(), rollout.RestartRights(), access.Grant("policy", "poddisruptionbudgets", "", "list"),
			),
		},
	}
}

func viewRules() []access.Rule {
	rules := []access.Rule{
		{
			Why: "Nodes, and what runs on them.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "list"),
				access.Grant("", "pods", "", "list"),
				access.Grant("apps", "daemonsets", "", "get list"),
				access.Grant("apps", "deployments", "", "list"),
				access.Grant("apps", "statefulsets", "", "list"), // with mode InPlace
			),
		},
		{
			Why: "NetworkPolicies, and what would stand in the way.",
			Rights: slices.Concat(
				access.Grant("networking.k8s.io", "networkpolicies", "", "list"),
				inventory.WebhookRights(),
				access.Grant(manifests.CalicoGroup, "ippools", "", "get list"),
				access.Grant(manifests.CalicoGroup, "networkpolicies", "", "list"),
				access.Grant(manifests.CalicoGroup, "globalnetworkpolicies", "", "list"),
			),
		},
		{
			Why: "Whether a mirror keeps deployments as they are.",
			Rights: access.Named(
				access.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "get"),
				freeze.DeploysName,
			),
		},
		{
			Why:      "Ranges of Services.",
			Rights:   access.Grant("networking.k8s.io", "servicecidrs", "", "list"),
			Optional: true,
		},
	}
	return slices.Concat(rules, viewInPlace(), viewManifests())
}

func viewInPlace() []access.Rule {
	return []access.Rule{
		{
			Why:      "What stands behind webhooks and may not pause with mode InPlace: who decides how many pods it has.",
			Rights:   access.Grant("autoscaling", "horizontalpodautoscalers", "", "list"),
			Optional: true,
		},
		{
			Why: "Who makes pods again, and how many have to be there, where spec.cni.again has all of them made once more.",
			Rights: slices.Concat(
				access.Grant("apps", "replicasets", "", "list"), access.Grant("policy", "poddisruptionbudgets", "", "list"),
			),
			Optional: true,
		},
		{
			Why: "What a plan with mode InPlace asks single nodes: which network their pods have, and who leads to Services there.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "get"),
				access.In(metav1.NamespaceSystem, access.Grant("cilium.io", "ciliumnodeconfigs", "", "get")...),
			),
			Optional: true,
		},
	}
}

func viewManifests() []access.Rule {
	return []access.Rule{
		{
			Why:      "Services, which report lists.",
			Rights:   access.Grant("", "services", "", "list"),
			Optional: true,
		},
		{
			Why: manifestsAre,
			Rights: slices.Concat(
				grants("get", "/namespaces", "/configmaps"),
				access.In(metav1.NamespaceSystem, access.Grant("", "configmaps", "", "list")...),
				grants("get", "/serviceaccounts", "/services", "apps/deployments"), grants("get", clusterObjects()...),
			),
		},
	}
}

// clusterObjects are further kinds of objects in manifests of networks, as group/resource.
func clusterObjects() []string {
	return []string{
		"policy/poddisruptionbudgets", "rbac.authorization.k8s.io/clusterroles", "rbac.authorization.k8s.io/clusterrolebindings",
		"rbac.authorization.k8s.io/roles", "rbac.authorization.k8s.io/rolebindings", "apiextensions.k8s.io/customresourcedefinitions",
	}
}

// grants are verbs on kinds of objects, as group/resource.
func grants(verbs string, all ...string) []access.Right {
	var out []access.Right
	for _, each := range all {
		group, resource, _ := strings.Cut(each, "/")
		out = append(out, access.Grant(group, resource, "", verbs)...)
	}
	return out
}

func operateRules() []access.Rule {
	const write = "create update patch delete"
	return []access.Rule{
		{
			Why: manifestsHold,
			Rights: slices.Concat(
				grants(write, "/namespaces", "/configmaps", "/serviceaccounts", "/services", "apps/daemonsets", "apps/deployments"),
				grants(write, clusterObjects()...), grants(write, manifests.CalicoGroup+"/ippools"),
			),
		},
		{
			Why:    "Pods get another network: they are deleted, and those that no controller has are created again.",
			Rights: access.Grant("", "pods", "", "get create delete"),
		},
		{
			Why:    "Backups of Secrets in manifests, and of no others.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("", "secrets", "", "list create delete")...),
		},
		connectivity.Rule(),
		{
			Why:    "The Service that canaries call.",
			Rights: access.In(v1alpha1.SystemNamespace, access.Grant("", "services", "", "deletecollection")...),
		},
	}
}

func (j *Job) Roles(context.Context) (access.Roles, error) { return j.roles(), nil }

func (j *Job) roles() access.Roles {
	taken := modeOf(j.Spec).roles
	if j.Spec.Again > 0 {
		taken = append(taken, roleInPlace)
	}
	own := slices.DeleteFunc(Roles(), func(r access.Role) bool {
		if r.Purpose == access.Agents {
			return !j.agents().Runs()
		}
		return slices.ContainsFunc([]string{roleInPlace, roleProxy}, func(end string) bool {
			return strings.HasSuffix(r.Name, end) && !slices.Contains(taken, end)
		})
	})
	return append(own, migration.RolesFor(j.Migration)...)
}

// toLook reports whether there is nothing to check without a right.
func toLook(r access.Right) bool {
	return Roles().Of(access.View).Needs(r) && r.Resource != "leases" && r.Namespace != v1alpha1.JournalNamespace
}
