package rights

import (
	"maps"
	"testing"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/migrations/podcidr/noderanges"
)

const podMove = `apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: pods}
spec:
  podCIDR: {to: [10.245.0.0/24], canary: {image: replumb}, roll: {barePods: Evict}}
  batch: {settle: 0s}
  proof: {image: replumb}
`

const workloads = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  selector: {matchLabels: {app: db}}
  serviceName: db
  template: {metadata: {labels: {app: db}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: log, namespace: shop}
spec:
  selector: {matchLabels: {app: log}}
  template: {metadata: {labels: {app: log}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
---
apiVersion: apps/v1
kind: ReplicaSet
metadata: {name: bare, namespace: shop}
spec:
  selector: {matchLabels: {app: bare}}
  template: {metadata: {labels: {app: bare}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
`

// TestPods: the roles are enough for whole migrations of pods between Calico's pools, and all of them is needed.
func TestPods(t *testing.T) {
	s := begin(t, "pods", podMove)
	s.manifests(workloads)
	for _, app := range []string{"web", "db", "log", "bare"} {
		s.running(app)
	}
	s.expect(3, viewer, []string{"check", "-f", s.file},
		"missing permission: create,patch,delete ippools.crd.projectcalico.org (role replumb-pods-operate in deploy/rbac-pod-cidr.yaml)")
	s.expect(3, viewer, []string{"plan", "-f", s.file})
	s.expect(0, operator, []string{"check", "-f", s.file})
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.seen("pods")
	s.expect(0, operator, []string{"rollback", "pods", "--yes"})
	s.expect(0, operator, []string{"apply", "-f", s.file})
	s.expect(0, operator, []string{"finish", "pods", "--yes"})
	s.seen("pods")

	var roles cluster.Roles
	for _, role := range podcidr.Roles() {
		if role.File != noderanges.RoleFile {
			roles = append(roles, role)
		}
	}
	secrets := cluster.Right{Verb: "list", Resource: "secrets", Namespace: "replumb-system"}
	views, all := read(t, s.since, viewer), read(t, s.since, viewer, operator)
	views.onlyReads(t)
	views.allowed(t, secrets)
	all.allowed(t, secrets)
	all.used(t, roles, unusedByPods())
}

// unusedByPods are the rights that no request takes here, with what would.
func unusedByPods() map[string]string {
	const leaked = "an address that no pod has any more is taken back"
	all := map[string]string{
		"update ipamblocks.crd.projectcalico.org":    leaked,
		"update ipamhandles.crd.projectcalico.org":   leaked,
		"delete ipamhandles.crd.projectcalico.org":   leaked,
		"patch ipreservations.crd.projectcalico.org": "nodes join or leave while the pools change",
		"get jobs.batch":                   "the pods of Jobs that are evicted",
		"patch services in replumb-system": "the Service that agents call moves, where Services do",
	}
	maps.Copy(all, unusedAgents())
	return all
}
