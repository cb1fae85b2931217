package checks

import (
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
)

// kubeadmChecks are about gates: Kubeadm (docs/design/kubeadm-gates.md).
func kubeadmChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1760", Severity: findings.Blocking, Run: checkMadeByKubeadm,
			Claim: "with gates: Kubeadm, kubeadm made the cluster, and its machines stay",
			Why: "replumb changes files as kubeadm writes them, on the machines that there are: another installer writes others, and who replaces machines " +
				"brings the old values back",
			Fix: "leave gates out, and do at each gate what the page about your platform says, or name actions",
		},
		{
			Code: "RP1761", Severity: findings.Blocking, Run: checkKubeadmConfig,
			Claim: "with gates: Kubeadm, kubeadm-config is as kubeadm writes it, and its networking counts",
			Why: "replumb changes networking.serviceSubnet and apiServer.certSANs, by which kubeadm makes control planes that join, and upgrades them; " +
				"flags in extraArgs and other folders would win over these",
			Fix: "bring ConfigMap kube-system/kubeadm-config into that form, or name the gates in manualGates",
		},
		{
			Code: "RP1762", Severity: findings.Warning, Run: checkOnlyServer,
			Claim: "with gates: Kubeadm, an API server is left while another one restarts",
			Why: "the only one is away for most of a minute while it gets its flag: pods and their traffic go on, since nodes keep their rules, but the API " +
				"does not answer, no pod is scheduled, and leases of leaders may run out",
			Fix: "choose a time at which the API is not needed; replumb holds its lock, and puts the former flag back if the server does not come up",
		},
		{
			Code: "RP1763", Severity: findings.Blocking, Run: checkGatePods,
			Claim: "with gates: Kubeadm, there is an image for the pods that change files of nodes",
			Why:   "they run replumb itself, and this build has no image of its own",
			Fix:   "set spec.image, or leave gates out",
		},
	}
}

func checkMadeByKubeadm(in Input) []findings.Result {
	if in.Kubeadm == nil {
		return findings.Skip("spec.serviceCIDR.gates is not Kubeadm")
	}
	return in.Kubeadm.NotMade(inventory.OriginOf(in.Snapshot.Nodes, in.Found().Kubeadm))
}

func checkKubeadmConfig(in Input) []findings.Result {
	if in.Kubeadm == nil {
		return findings.Skip("spec.serviceCIDR.gates is not Kubeadm")
	}
	return in.Kubeadm.Unusual(rangeFlag)
}

func checkOnlyServer(in Input) []findings.Result {
	if in.Kubeadm == nil || !restartsServers(in) {
		return findings.Skip("replumb restarts no API server")
	}
	if len(in.Kubeadm.ControlPlanes) != 1 {
		return nil
	}
	node := in.Kubeadm.ControlPlanes[0]
	return []findings.Result{findings.Failed("Node "+node, "the only API server is on node %s", node)}
}

func restartsServers(in Input) bool {
	spec := in.spec()
	return spec.ByKubeadm(v1alpha1.GateAPIServers) && strings.Contains(strings.Join(controlPlaneGates(in.Inventory), " "), "api-servers")
}

func checkGatePods(in Input) []findings.Result {
	if in.Kubeadm == nil {
		return findings.Skip("spec.serviceCIDR.gates is not Kubeadm")
	}
	if in.GateImage != "" {
		return nil
	}
	return []findings.Result{findings.Failed("", "neither spec.image nor this build names an image")}
}
