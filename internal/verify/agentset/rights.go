package agentset

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/workload"
)

// podRights are what agents of both networks may do: see what they watch, and report.
func podRights() []access.Right {
	return slices.Concat(
		access.Grant("", "services", "", "list watch"),
		access.Grant("replumb.dev", "migrations", "", "get list watch"),
		access.Grant("replumb.dev", "nodereports", "", "get create patch"),
		access.Grant("replumb.dev", "nodereports", "status", "get patch"),
	)
}

// flagz is where API servers show their flags, from Kubernetes 1.36.
const flagz = "/flagz"

// hostRights are those of the agent in the network of a node. Where Services move it names clients
// by the pods of its node, which takes the right to list all pods, and goes by the addresses that
// are reserved.
func hostRights(services bool) []access.Right {
	if !services {
		return podRights()
	}
	return slices.Concat(
		podRights(), access.Grant("", "pods", "", "list watch"),
		access.Grant("networking.k8s.io", "ipaddresses", "", "get list watch"),
	)
}

// Rights are what a user needs to run agents. Those of the agents are among them, as no user can
// grant more than they have.
func Rights(services bool) []access.Right {
	all := slices.Concat(
		access.Grant("", "nodes", "", "list"),
		access.Grant("", "namespaces", "", "get patch"),
		access.Grant("", "services", "", "get list create patch delete"),
		access.Grant("", "serviceaccounts", "", "get create patch delete"),
		access.Grant("", "pods", "", "list delete"),
		access.Grant("", "events", "", "list"),
		access.Grant("apps", "daemonsets", "", "get list create patch delete"),
		access.Grant("discovery.k8s.io", "endpointslices", "", "list"),
		access.Grant("rbac.authorization.k8s.io", "clusterroles", "", "get create patch delete"),
		access.Grant("rbac.authorization.k8s.io", "clusterrolebindings", "", "get create patch delete"),
		access.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "get create patch delete"),
		access.Grant("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "get create patch delete"),
		access.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"),
		access.Grant("replumb.dev", "migrations", "", "get"),
		access.Grant("replumb.dev", "nodereports", "", "list watch deletecollection"),
	)
	for _, r := range hostRights(services) {
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	if services {
		all = append(all, singleRights()...)
		all = append(all, access.Right{Verb: "get", URL: flagz})
	}
	return all
}

func accountOf(o v1alpha1.ProbeOrigin) string {
	if o == v1alpha1.FromPod {
		return podAccount
	}
	return hostAccount
}

func userOf(o v1alpha1.ProbeOrigin) string {
	return "system:serviceaccount:" + v1alpha1.SystemNamespace + ":" + accountOf(o)
}

// rights are the accounts of agents and what they may do: those that are called from all over the
// cluster may see less.
func (s objects) rights([]string) ([]client.Object, error) {
	services := len(s.Ranges) > 0
	host := hostRights(services)
	if services {
		host = append(host, access.Right{Verb: "get", URL: flagz})
	}
	account := func(name, role string) metav1.ObjectMeta { return s.meta(v1alpha1.SystemNamespace, name, role) }
	return slices.Concat(
		workload.Rights(account(hostAccount, v1alpha1.RoleAgent), hostAccess, host, nil),
		workload.Rights(account(podAccount, v1alpha1.RoleProbe), podAccess, podRights(), nil),
	), nil
}
