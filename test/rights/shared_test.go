package rights

import (
	"fmt"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/migrations"
)

// workload is a workload in shop, as YAML. Its pods have its name as their label app.
func workload(kind, name, more string) string {
	return fmt.Sprintf(`---
apiVersion: apps/v1
kind: %[1]s
metadata: {name: %[2]s, namespace: shop}
spec:
  selector: {matchLabels: {app: %[2]s}}
  template: {metadata: {labels: {app: %[2]s}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
%[3]s`, kind, name, more)
}

// flannelAgent is flannel's DaemonSet, as YAML.
func flannelAgent(namespace string) string {
	return fmt.Sprintf(`apiVersion: apps/v1
kind: DaemonSet
metadata: {name: kube-flannel-ds, namespace: %s}
spec:
  selector: {matchLabels: {app: flannel}}
  template:
    metadata: {labels: {app: flannel}}
    spec:
      hostNetwork: true
      terminationGracePeriodSeconds: 1
      tolerations: [{operator: Exists}]
      containers: [{name: kube-flannel, image: flannel}]
`, namespace)
}

// workloads creates what is restarted, a Deployment of that name among it, and what is evicted, and waits until a pod of each runs.
func (s *scene) workloads(deployment string) {
	s.Helper()
	s.manifests(workload("Deployment", deployment, "") + workload("StatefulSet", "db", "  serviceName: db\n") +
		workload("DaemonSet", "log", "") + workload("ReplicaSet", "bare", ""))
	for _, app := range []string{deployment, "db", "log", "bare"} {
		s.running(app)
	}
}

// audited holds what the users did in this scene against their roles, and returns it. Requests that take other rights may be denied, and
// unused are the rights that no request takes, with what would.
func (s *scene) audited(roles access.Roles, unused map[string]string, denied ...access.Right) audit {
	s.Helper()
	return s.stage.audited(s.T, s.since, roles, unused, denied...)
}

// audited is that of all scenes on a stage since its log was so long.
func (s stage) audited(t *testing.T, since int64, roles access.Roles, unused map[string]string, denied ...access.Right) audit {
	t.Helper()
	// Neither Services nor pools have Secrets that are backed up: they do without the right to list them.
	denied = append(denied, access.Right{Verb: "list", Resource: "secrets", Namespace: "replumb-system"})
	// Whether an operator is alive: where one is installed, everyone may see that.
	denied = append(denied, access.Named(
		access.In(v1alpha1.SystemNamespace, access.Grant("coordination.k8s.io", "leases", "", "get")...), migrations.OperatorLease)...)
	views, all := s.read(t, since, viewer), s.read(t, since, viewer, operator)
	views.onlyReads(t)
	views.allowed(t, denied...)
	all.allowed(t, denied...)
	all.used(t, roles, unused)
	return all
}

// agents is why users have rights that only agents use.
const agents = "what agents may do themselves, which users can only give them if they have it"

// older is why users may change definitions.
const older = "the definition is one of an older replumb"

// lifted is why users may look at the binding of a freeze of deployments.
const lifted = "a freeze of deployments that the Migration no longer asks for"

// unusedAround are what no request takes of the rights that every kind has around its own steps.
func unusedAround() map[string]string {
	return map[string]string{
		"update customresourcedefinitions.apiextensions.k8s.io migrations.replumb.dev": older,
		"update leases.coordination.k8s.io replumb in kube-system":                     "a run that takes longer than these",
	}
}

// unusedAgents are what no request takes of the rights that are there for agents, and for definitions.
func unusedAgents() map[string]string {
	return map[string]string{
		"update customresourcedefinitions.apiextensions.k8s.io migrations.replumb.dev":  older,
		"update customresourcedefinitions.apiextensions.k8s.io nodereports.replumb.dev": older,
		"delete pods in replumb-system":        "agents on nodes that are not ready",
		"watch services":                       agents,
		"watch migrations.replumb.dev":         agents,
		"get nodereports.replumb.dev":          agents,
		"create nodereports.replumb.dev":       agents,
		"patch nodereports.replumb.dev":        agents,
		"get nodereports/status.replumb.dev":   agents,
		"patch nodereports/status.replumb.dev": agents,
	}
}

// unusedKinds are the rights to list what others define, which is asked for where it is defined. Calico's are defined here.
func unusedKinds(roles access.Roles) map[string]string {
	all := map[string]string{}
	for _, r := range roles.Of(access.View).Rights() {
		switch r.Group {
		case "cilium.io", "security.istio.io", "networking.istio.io", "traefik.io", "gateway.networking.k8s.io", "cert-manager.io",
			"externaldns.k8s.io", "metallb.io", "tailscale.com":
			all[r.String()] = "clusters in which it is defined"
		}
	}
	return all
}
