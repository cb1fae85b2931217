package rights

import (
	"maps"
	"slices"
	"testing"

	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

// serviceMove has agents, so that what they take is used.
const serviceMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: move}
spec:
  image: replumb
  serviceCIDR:
    from: [172.31.0.0/16]
    to: [172.24.0.0/16]
    drain: 0s
    refresh: {barePods: Evict}
  batch: {settle: 0s}
  proof: {soak: 0s}
`

// services are the Services, and a Job beside the workloads that carry their addresses.
const services = `apiVersion: networking.k8s.io/v1
kind: ServiceCIDR
metadata: {name: old}
spec: {cidrs: [172.31.0.0/16]}
---
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 172.31.3.7, selector: {app: cart}, ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: v1
kind: Service
metadata: {name: ledger, namespace: shop}
spec: {clusterIP: 172.31.3.8, ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: ledger-1, namespace: shop, labels: {kubernetes.io/service-name: ledger}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [192.0.2.77], conditions: {ready: true}}]
---
apiVersion: batch/v1
kind: Job
metadata: {name: batch, namespace: shop}
spec:
  template:
    metadata: {labels: {app: batch}}
    spec: {restartPolicy: OnFailure, containers: [{name: c, image: batch}]}
`

// TestServices: the roles are enough for whole migrations of Services, and all of them is needed.
func TestServices(t *testing.T) {
	s := begin(t, "services", serviceMove)
	s.manifests(services)
	s.workloads("cart")
	s.running("batch")
	s.expect(3, viewer, []string{"check", "-f", s.file},
		"missing permission: create,patch,delete,watch services (role replumb-services-operate)",
		"missing permission: patch services/status (role", "missing permission: create,delete configmaps in replumb-system (role",
		"RP1004")
	s.moves("move")
	s.expect(0, operator, []string{"pause", "move"})
	s.expect(0, operator, []string{"resume", "move"})
	s.expect(0, operator, []string{"rollback", "move", "--yes"})
	s.expect(0, operator, []string{"unfreeze"})
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.expect(3, viewer, []string{"plan", "-f", s.file})
	s.expect(0, operator, []string{"finish", "move", "--yes"})
	s.seen("move")

	roles := servicecidr.Roles().Of(access.View, access.Operate, access.Agents, access.Overlap)
	// Whether a freeze is enforced is asked by a change that is only tried.
	tried := access.Right{Verb: "patch", Resource: "services", Namespace: "default", Name: "kubernetes"}
	nodes := access.Right{Verb: "get", Resource: "nodes", Subresource: "proxy"}
	all := s.audited(roles, unusedByServices(), tried, nodes)
	if !slices.ContainsFunc(all, func(e event) bool { return e.Object.Resource == "selfsubjectaccessreviews" }) {
		t.Error("no one asked what the user may do")
	}
}

// unusedByServices are the rights that no request takes here, with what would.
func unusedByServices() map[string]string {
	const (
		deploy = "unfreeze, where a mirror froze deployments"
		slow   = "a rollout that is not complete at the first look"
		// keeper is why users have rights that only what keeps bridges in step uses.
		keeper = "what replicas of the Deployment overlap may do themselves, which users can only give them if they have it"
	)
	all := map[string]string{
		"get /flagz":                    "gates of API servers, which ask each at its own address",
		"get nodes":                     "gates of kubelets that do not answer",
		"get secrets in replumb-system": "certificates of a client of etcd, where spec.serviceCIDR.etcd names a Secret",
		"update validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze":         "the freeze is another migration's",
		"delete validatingadmissionpolicies.admissionregistration.k8s.io replumb-freeze-deploys":       deploy,
		"delete validatingadmissionpolicybindings.admissionregistration.k8s.io replumb-freeze-deploys": deploy,
		"patch endpointslices.discovery.k8s.io":                                                        "endpoints of a Service without selector change while it has a bridge",
		"watch deployments.apps":                                                                       slow,
		"watch statefulsets.apps":                                                                      slow,
		"watch daemonsets.apps":                                                                        slow,
		"watch pods":                                                                                   agents,
		"watch endpointslices.discovery.k8s.io":                                                        keeper,
		"watch ipaddresses.networking.k8s.io":                                                          keeper,
		"create leases.coordination.k8s.io in replumb-system":                                          keeper,
		"patch leases.coordination.k8s.io in replumb-system":                                           keeper,
		"get leases.coordination.k8s.io overlap in replumb-system":                                     keeper,
		"update leases.coordination.k8s.io overlap in replumb-system":                                  keeper,
	}
	for _, verb := range []string{"get", "update", "delete"} {
		for _, kind := range []string{"validatingadmissionpolicies", "validatingadmissionpolicybindings"} {
			all[verb+" "+kind+".admissionregistration.k8s.io replumb-guard"] = "a cluster without ServiceCIDRs"
		}
	}
	maps.Copy(all, unusedAgents())
	maps.Copy(all, unusedKinds(servicecidr.Roles()))
	return all
}
