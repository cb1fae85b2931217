// Package checks looks at a cluster before its Services move. checks.go lists the checks.
package checks

import (
	"slices"

	"github.com/replumb/replumb/internal/engine/findings"
)

// All are the checks of this migration, in the order in which they are shown.
func All() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", slices.Concat(clusterChecks(), dualWriteChecks(), flagChecks(), ownerChecks(), kubeadmChecks(), kubeadmConfigChecks())...),
		findings.Group("Services", slices.Concat(serviceChecks(), identityChecks(), storeChecks())...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("kube-proxy", slices.Concat(proxyChecks(), localChecks(), dataPlaneChecks())...),
		findings.Group("DNS", dnsChecks()...),
		findings.Group("Old addresses written down", referenceChecks()...),
		findings.Group("Manifests and workloads", workloadChecks()...),
		findings.Group("Agents", slices.Concat(agentChecks(), proofChecks())...),
		findings.Group("Admission", slices.Concat(admissionChecks(), ingressChecks())...),
	)
}
