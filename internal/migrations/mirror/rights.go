package mirror

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/objectsync"
	"github.com/replumb/replumb/internal/kube/objectsync/copyrules"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/verify/connectivity"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Roles are the rights in the source by purpose, for the kinds that are copied.
// deploy/rbac-mirror.yaml grants them for Usual kinds.
func Roles(kinds []schema.GroupResource) access.Roles {
	const file, name = "rbac-mirror.yaml", "replumb-mirror-"
	return access.Roles{
		{
			Name: name + "view", File: file, Purpose: access.View,
			Rules: slices.Concat(migration.ViewRules(), []access.Rule{migration.FreezeViewRule()}, viewRules(kinds)),
			Danger: []string{
				"It reads every Secret: they are copied. Its holder can be anyone whose token is in one; treat them as an administrator of the cluster.",
				"Kinds are named: * would grant pods/exec and nodes/proxy as well. Kinds that are not Kubernetes' own are in what",
				"replumb rbac -f FILE prints.",
			},
		},
		{
			Name: name + "operate", File: file, Purpose: access.Operate,
			Rules: slices.Concat(migration.OperateRules(), []access.Rule{migration.FreezeRule(freeze.DeploysName)}, operateRules(kinds)),
			Danger: []string{
				"With patch of workloads in all namespaces it runs pods of any image with any ServiceAccount, where Pod Security lets it. In the other",
				"cluster replumb makes objects of every kind, roles and their bindings among them, which takes cluster-admin there:",
				"  kubectl --context MIRROR create clusterrolebinding replumb-mirror --clusterrole=cluster-admin --user=NAME",
			},
		},
		lossguard.Role(name+"agents", file, false),
	}
}

// Usual are the kinds that a mirror copies of Kubernetes' own.
func Usual() []schema.GroupResource {
	var all []schema.GroupResource
	for _, g := range []struct {
		group     string
		resources []string
	}{
		{"", []string{
			"configmaps", "endpoints", "limitranges", "namespaces", "persistentvolumeclaims", "pods", "podtemplates", "replicationcontrollers",
			"resourcequotas", "secrets", "serviceaccounts", "services",
		}},
		{"admissionregistration.k8s.io", []string{
			"mutatingadmissionpolicies", "mutatingadmissionpolicybindings", "mutatingwebhookconfigurations", "validatingadmissionpolicies",
			"validatingadmissionpolicybindings", "validatingwebhookconfigurations",
		}},
		{"apiextensions.k8s.io", []string{"customresourcedefinitions"}},
		{"apiregistration.k8s.io", []string{"apiservices"}},
		{"apps", []string{"daemonsets", "deployments", "replicasets", "statefulsets"}},
		{"autoscaling", []string{"horizontalpodautoscalers"}},
		{"batch", []string{"cronjobs", "jobs"}},
		{"discovery.k8s.io", []string{"endpointslices"}},
		{"flowcontrol.apiserver.k8s.io", []string{"flowschemas", "prioritylevelconfigurations"}},
		{"networking.k8s.io", []string{"ingressclasses", "ingresses", "networkpolicies"}},
		{"node.k8s.io", []string{"runtimeclasses"}},
		{"policy", []string{"poddisruptionbudgets"}},
		{"rbac.authorization.k8s.io", []string{"clusterrolebindings", "clusterroles", "rolebindings", "roles"}},
		{"resource.k8s.io", []string{"deviceclasses", "resourceclaimtemplates"}},
		{"scheduling.k8s.io", []string{"priorityclasses"}},
		{"storage.k8s.io", []string{"storageclasses", "volumeattributesclasses"}},
	} {
		for _, r := range g.resources {
			all = append(all, schema.GroupResource{Group: g.group, Resource: r})
		}
	}
	return all
}

func each(kinds []schema.GroupResource, verbs string) []access.Right {
	var all []access.Right
	for _, k := range kinds {
		all = append(all, access.Grant(k.Group, k.Resource, "", verbs)...)
	}
	return all
}

func viewRules(kinds []schema.GroupResource) []access.Rule {
	return []access.Rule{
		{Why: "What is copied, Secrets included.", Rights: each(kinds, "get list")},
		{
			Why: "What is not copied, and says whether copies will do.",
			Rights: slices.Concat(
				access.Grant("", "nodes", "", "list"),
				access.Grant("", "pods", "", "list"),
				access.Named(access.Grant("", "namespaces", "", "get"), metav1.NamespaceSystem),
			),
		},
	}
}

func operateRules(kinds []schema.GroupResource) []access.Rule {
	return []access.Rule{
		{Why: "What is copied is followed while it changes.", Rights: each(kinds, "watch")},
		{
			Why: "Names of the mirror in certificates.",
			Rights: slices.Concat(
				access.Grant("cert-manager.io", "certificates", "", "patch"),
				access.Grant("networking.k8s.io", "ingresses", "", "patch"),
			),
		},
		{
			Why: "What must not run twice sleeps while the mirror serves.",
			Rights: slices.Concat(
				access.Grant("apps", "deployments", "", "patch"),
				access.Grant("apps", "statefulsets", "", "patch"),
				access.Grant("batch", "cronjobs", "", "patch"),
				access.Grant("batch", "cronjobs", "status", "patch"),
			),
		},
		{
			Why:    "Whether the freeze is enforced is asked by a change that is only tried.",
			Rights: access.In(metav1.NamespaceDefault, access.Named(access.Grant("", "services", "", "patch"), "kubernetes")...),
		},
	}
}

// TargetRoles are the rights in the target, where roles and bindings are made too.
func TargetRoles(canaries bool) access.Roles {
	const group = "rbac.authorization.k8s.io"
	var more []access.Rule
	if canaries {
		more = []access.Rule{connectivity.Rule()}
	}
	return access.Roles{{
		Purpose: access.Operate, Rules: append(more, access.Rule{Rights: slices.Concat(
			access.Grant("*", "*", "", "get list create patch delete"),
			access.Grant(group, "roles", "", "escalate bind"),
			access.Grant(group, "clusterroles", "", "escalate bind"),
		)}),
	}}
}

// Roles are those that this Migration takes in the source, its kinds by name.
func (j *Job) Roles(context.Context) (access.Roles, error) {
	rules, err := copyrules.New(j.Spec.rules(nil))
	if err != nil {
		return nil, err
	}
	source, err := objectsync.Connect(j.Tools.Cluster)
	if err != nil {
		return nil, err
	}
	kinds, err := source.Reads(rules)
	purposes := []access.Purpose{access.View, access.Operate}
	if j.agents().Runs() {
		purposes = append(purposes, access.Agents)
	}
	return Roles(kinds).Of(purposes...), err
}

// toLook reports whether a right is needed to look at all: without it there is nothing to check.
func toLook(r access.Right) bool { return r.Verb == "list" && r.Namespace == "" }
