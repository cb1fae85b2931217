package servicecidr

import (
	"context"
	"slices"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/kube/etcdrelay"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/network/overlapset"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

const (
	networking = "networking.k8s.io"
	discovery  = "discovery.k8s.io"
)

// Roles are the rights that each purpose needs. The files in deploy grant exactly these.
func Roles() access.Roles {
	const file, name = "rbac.yaml", "replumb-services-"
	return access.Roles{
		{
			Name: name + "view", File: file, Purpose: access.View,
			Rules: slices.Concat(migration.ViewRules(), []access.Rule{migration.FreezeViewRule()}, viewRules()),
			Danger: []string{
				"It reads all ConfigMaps, custom resources of the kinds below and the specs of all workloads, to find old addresses in them. Passwords that",
				"are in there, it reads.",
			},
		},
		{
			Name: name + "operate", File: file, Purpose: access.Operate, Rules: slices.Concat(migration.OperateRules(), operateRules()),
			Danger: []string{
				"It can take over the traffic of every Service: a move needs patch of services, services/status and endpointslices, and create",
				"and delete of ipaddresses, in all namespaces (see CVE-2020-8554, CVE-2021-25740). With patch of workloads it",
				"runs pods of any image with any ServiceAccount, where Pod Security lets it. Treat who has it as an administrator of the cluster, and",
				"bind it for as long as a migration lasts.",
			},
		},
		lossguard.Role(name+"agents", file, true),
		{
			Name: name + "overlap", File: file, Purpose: access.Overlap,
			Rules: []access.Rule{
				{
					Why: "The Deployment that keeps bridges in step between commands, and what it may do itself: no user can give it more rights than " +
						"they have.",
					Rights: overlapset.Rights(),
				},
			},
			Danger: []string{
				"Its ServiceAccount, and who has the role, can lead Services and their endpoints elsewhere in all namespaces (see CVE-2021-25740): no",
				"role tells bridges from other Services. The account is there from the first bridge to the end of finish, or of rollback.",
			},
		},
		{
			Name: name + "without-agents", File: file, Purpose: access.WithoutAgents, Rules: withoutAgents(),
			Danger: []string{
				"Its holder is root on every node: get of nodes/proxy runs commands in any container, past audit and admission. Agents do without it.",
			},
		},
		{
			Name: name + "behind-cilium", File: file, Purpose: access.BehindCilium, Rules: []access.Rule{migration.KeepTypeRule()},
			Danger: []string{
				"Its holder can have API servers change whatever anybody writes. Without it what says type ClusterIP of a Service that has moved behind",
				"Cilium is refused until finish (RP1208).",
			},
		},
		kubeadmgate.Role(name+"kubeadm-gates", file),
		{
			Name: name + "kubeadm-etcd", File: file, Purpose: access.KubeadmEtcd,
			Rules: []access.Rule{
				migration.PrivilegeRule(),
				{
					Why:    "The pod on a control plane that connects to the etcd of its node, and processes in that pod, which are its connections.",
					Rights: etcdrelay.Rights(),
				},
			},
			Danger: []string{
				"Its holder has all that the cluster keeps, Secrets among it: it runs what it likes in the pod that is a client of etcd, and makes pods that",
				"are root on their node. Bind it for as long as the move lasts.",
			},
		},
	}
}

func viewRules() []access.Rule {
	return []access.Rule{
		{
			Why: "Services, their ranges and addresses, and where they are needed.",
			Rights: slices.Concat(
				access.Grant("", "services", "", "get list"),
				access.Grant(networking, "servicecidrs", "", "get list"),
				access.Grant(networking, "ipaddresses", "", "get list"),
				access.Grant("", "nodes", "", "list"),
				access.Grant("", "namespaces", "", "list"),
				access.Grant(discovery, "endpointslices", "", "list"),
			),
		},
		{
			Why: "Workloads that carry old addresses, and what restarts them.",
			Rights: slices.Concat(
				rollout.ListRights(),
				access.Grant("batch", "jobs", "", "list"),
				access.Grant("policy", "poddisruptionbudgets", "", "list"),
			),
		},
		{
			Why:      "What is looked through for old addresses, and for what would stand in the way. Without one of these the outcome of its checks is unknown.",
			Optional: true,
			Rights: slices.Concat(
				access.Grant("", "configmaps", "", "list"),
				inventory.ReferenceRights(),
				inventory.NeighbourRights(),
			),
		},
		{
			Why:      "How the Deployment fares that keeps bridges in step between commands.",
			Optional: true,
			Rights:   overlapset.ViewRights(),
		},
		{
			Why:      "Whether quotas have room for bridges.",
			Optional: true,
			Rights:   access.Grant("", "resourcequotas", "", "list"),
		},
		{
			Why:      "The flags of API servers, from Kubernetes 1.36.",
			Optional: true,
			Rights:   []access.Right{{Verb: "get", URL: "/flagz"}},
		},
	}
}

func operateRules() []access.Rule {
	return []access.Rule{
		{
			Why: "Services move, and bridges keep their old addresses.",
			Rights: slices.Concat(
				access.Grant("", "services", "", "create patch delete"),
				access.Grant("", "services", "status", "patch"),
				access.Grant(networking, "servicecidrs", "", "create patch delete"),
				access.Grant(networking, "ipaddresses", "", "create delete"),
			),
		},
		{
			Why:    "Copies for the bridges of Services without a selector; the endpoints of barriers.",
			Rights: access.Grant(discovery, "endpointslices", "", "watch create patch delete"),
		},
		{
			Why:    "What bridges have to follow while a command runs, where nothing in the cluster has them do so.",
			Rights: slices.Concat(access.Grant("", "services", "", "watch"), access.Grant(networking, "ipaddresses", "", "watch")),
		},
		{
			Why:      "The certificates of a client of etcd, where spec.serviceCIDR.etcd names a Secret with them.",
			Optional: true,
			Rights:   access.In(v1alpha1.SystemNamespace, access.Grant("", "secrets", "", "get")...),
		},
		migration.FreezeRule(freeze.Name),
		migration.GuardRule(),
		{
			Why:    "Restarts of what carries old addresses.",
			Rights: rollout.RestartRights(),
		},
		{
			Why:    "Pods that leave their Services before they end, as long as no NetworkPolicy treats them otherwise for it.",
			Rights: rollout.RelieveRights(),
		},
		{
			Why:    "Whether a node is still there.",
			Rights: access.Grant("", "nodes", "", "get"),
		},
	}
}

func withoutAgents() []access.Rule {
	return []access.Rule{{
		Why:    "kube-proxy's health-check ports, and the kubelets' configuration, through the API server.",
		Rights: access.Grant("", "nodes", "proxy", "get"),
	}}
}

// Roles are those that this Migration takes.
func (j *Job) Roles(context.Context) (access.Roles, error) {
	purposes := []access.Purpose{access.View, access.Operate}
	agents := j.agents().Runs()
	if agents {
		purposes = append(purposes, access.Agents)
	}
	if j.overlapImage().Name != "" {
		purposes = append(purposes, access.Overlap)
	}
	asksNodes := j.Spec.Barrier == v1alpha1.BarrierHealthCheck || j.Spec.Barrier == "" && !agents
	if asksNodes && j.Spec.Mode != v1alpha1.ModeExtend {
		purposes = append(purposes, access.WithoutAgents)
	}
	if j.Spec.Overlap == v1alpha1.OverlapLoadBalancer {
		purposes = append(purposes, access.BehindCilium)
	}
	if j.Spec.Store != nil && j.Spec.Store.Source == v1alpha1.SourceKubeadm {
		purposes = append(purposes, access.KubeadmEtcd)
	}
	if j.Spec.Gates == v1alpha1.GatesKubeadm {
		purposes = append(purposes, access.KubeadmGates)
	}
	return append(Roles().Of(purposes...), migration.RolesFor(j.Migration)...), nil
}

// toLook reports whether a right is needed to look at all: backups say where Services came from.
func toLook(r access.Right) bool {
	if !Roles().Of(access.View).Needs(r) {
		return false
	}
	here := r.Namespace == "" || r.Namespace == v1alpha1.SystemNamespace
	return r.Verb == "list" && here && r.Resource != "endpointslices" && r.Resource != "leases" || r.Resource == "migrations"
}
