package agentset

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
)

type right struct{ group, resource, subresource, verbs string }

// podRights are what agents of both networks may do: see what they watch, and report.
func podRights() []right {
	return []right{
		{"", "services", "", "list watch"},
		{"replumb.dev", "migrations", "", "get list watch"},
		{"replumb.dev", "nodereports", "", "get create patch"},
		{"replumb.dev", "nodereports", "status", "get patch"},
	}
}

// flagz is where API servers show their flags, from Kubernetes 1.36.
const flagz = "/flagz"

// hostRights are what the agent in the network of a node may do. Where Services move it names clients by the pods of its node, which is
// the right to see those of all nodes: no Role knows nodes. And it asks whether an address is reserved for a bridge. What else it may do
// there is get flagz.
func hostRights(services bool) []right {
	if !services {
		return podRights()
	}
	return append(podRights(), right{"", "pods", "", "list watch"}, right{"networking.k8s.io", "ipaddresses", "", "get"})
}

// Rights are what a user needs to have agents run, in a migration of Services or in another one: no user can give agents more rights than
// they have, hence those of agents are among them.
func Rights(services bool) []cluster.Right {
	all := slices.Concat(
		cluster.Grant("", "nodes", "", "list"),
		cluster.Grant("", "namespaces", "", "get patch"),
		cluster.Grant("", "services", "", "get list create patch delete"),
		cluster.Grant("", "serviceaccounts", "", "get create patch delete"),
		cluster.Grant("", "pods", "", "list delete"),
		cluster.Grant("", "events", "", "list"),
		cluster.Grant("apps", "daemonsets", "", "get list create patch delete"),
		cluster.Grant("discovery.k8s.io", "endpointslices", "", "list"),
		cluster.Grant("rbac.authorization.k8s.io", "clusterroles", "", "get create patch delete"),
		cluster.Grant("rbac.authorization.k8s.io", "clusterrolebindings", "", "get create patch delete"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "get create patch delete"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "get create patch delete"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"),
		cluster.Grant("replumb.dev", "migrations", "", "get"),
		cluster.Grant("replumb.dev", "nodereports", "", "list watch deletecollection"),
	)
	for _, r := range hostRights(services) {
		for _, one := range cluster.Grant(r.group, r.resource, r.subresource, r.verbs) {
			if !slices.Contains(all, one) {
				all = append(all, one)
			}
		}
	}
	if services {
		all = append(all, singleRights()...)
		all = append(all, cluster.Right{Verb: "get", URL: flagz})
	}
	return all
}

// accountOf is who the agents of a network are.
func accountOf(o v1alpha1.ProbeOrigin) string {
	if o == v1alpha1.FromPod {
		return podAccount
	}
	return hostAccount
}

// userOf is that account as the API server names it.
func userOf(o v1alpha1.ProbeOrigin) string {
	return "system:serviceaccount:" + v1alpha1.SystemNamespace + ":" + accountOf(o)
}

// rights are the accounts of agents and what they may do: those that are called from all over the cluster may see less.
func (s *Set) rights([]string) ([]client.Object, error) {
	services := len(s.Ranges) > 0
	var more []rbacv1.PolicyRule
	if services {
		more = []rbacv1.PolicyRule{{NonResourceURLs: []string{flagz}, Verbs: []string{"get"}}}
	}
	return slices.Concat(
		s.grant(hostAccount, hostAccess, v1alpha1.RoleAgent, hostRights(services), more...),
		s.grant(podAccount, podAccess, v1alpha1.RoleProbe, podRights()),
	), nil
}

func (s *Set) grant(account, access, role string, rights []right, more ...rbacv1.PolicyRule) []client.Object {
	m := s.meta("", access, role)
	var rules []rbacv1.PolicyRule
	for _, r := range rights {
		name := r.resource
		if r.subresource != "" {
			name += "/" + r.subresource
		}
		rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{r.group}, Resources: []string{name}, Verbs: strings.Fields(r.verbs)})
	}
	rules = append(rules, more...)
	const rbac = "rbac.authorization.k8s.io"
	return []client.Object{
		&corev1.ServiceAccount{
			TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
			ObjectMeta: s.meta(v1alpha1.SystemNamespace, account, role),
		},
		&rbacv1.ClusterRole{TypeMeta: metav1.TypeMeta{APIVersion: rbac + "/v1", Kind: "ClusterRole"}, ObjectMeta: m, Rules: rules},
		&rbacv1.ClusterRoleBinding{
			TypeMeta: metav1.TypeMeta{APIVersion: rbac + "/v1", Kind: "ClusterRoleBinding"}, ObjectMeta: m,
			RoleRef:  rbacv1.RoleRef{APIGroup: rbac, Kind: "ClusterRole", Name: access},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: v1alpha1.SystemNamespace, Name: account}},
		},
	}
}
