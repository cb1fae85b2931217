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

// TestPods: the roles are enough for whole migrations of pods between Calico's pools, and all of them is needed.
func TestPods(t *testing.T) {
	s := begin(t, "pods", podMove)
	s.workloads("web")
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
	s.audited(roles, unusedByPods())
}

// unusedByPods are the rights that no request takes here, with what would.
func unusedByPods() map[string]string {
	const leaked = "an address that no pod has any more is taken back"
	all := map[string]string{
		"delete ipamhandles.crd.projectcalico.org":   leaked,
		"patch ipreservations.crd.projectcalico.org": "nodes join or leave while the pools change",
		"list ciliumpodippools.cilium.io":            "replumb ranges",
		"get jobs.batch":                             "the pods of Jobs that are evicted",
		"patch services in replumb-system":           "the Service that agents call moves, where Services do",
	}
	maps.Copy(all, unusedAgents())
	maps.Copy(all, unusedKinds(podcidr.Roles()))
	return all
}
