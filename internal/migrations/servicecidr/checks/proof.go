package checks

import (
	"fmt"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/verify/agentset"
)

func proofChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1605", Severity: findings.Warning, Run: checkIngress,
			Claim: "a probe goes through each ingress controller",
			Why: "agents call Services, and not through what stands before them: an ingress controller watches Services by itself, and what its clients " +
				"lose in a move no agent sees",
			Fix: "have it probed: in spec.proof.probes, kind HTTP, with the controller's Service or load balancer in address and a host that it serves in host " +
				"(address: http://traefik.kube-system.svc.cluster.local/, host: shop.example); such a probe counts towards the loss budget",
		},
		{
			Code: "RP1606", Severity: findings.Warning, Run: checkEgress,
			Claim: "namespaces are free of egress policies, which agents cannot probe",
			Why: "agents run in replumb-system, where no such policy holds. kube-proxy leads to pods before most networks look at policies, which then see no " +
				"difference; one that looks earlier sees the address of a Service, and takes that of a bridge for one outside of the cluster",
			Fix: "move one Service that pods of such a namespace call first, in a tier of its own with a pause (spec.tiers), and call its old address from " +
				"a pod there",
		},
	}
}

func (in Input) watches() bool { return in.Image != "" && in.bridging() }

func checkIngress(in Input) []findings.Result {
	if !in.watches() {
		return findings.Skip(agentset.NoAgents)
	}
	for _, p := range in.spec().Common.Proof.Probes {
		if p.Kind == v1alpha1.RequestHTTP {
			return nil
		}
	}
	out := in.unread("ingressclasses")
	classes := map[string]bool{}
	for name, controller := range in.Found().IngressClasses {
		classes[fmt.Sprintf("%s (%s)", name, controller)] = true
	}
	if len(out)+len(classes) == 0 {
		return findings.Skip("the cluster has no IngressClass")
	}
	if len(classes) > 0 {
		out = append(out, findings.Failed("", "nothing is probed through the ingress controllers of classes %s", firstFive(classes)))
	}
	return out
}

func checkEgress(in Input) []findings.Result {
	if !in.watches() {
		return findings.Skip(agentset.NoAgents)
	}
	if in.Found().HasCalico() { // whose iptables look at policies behind kube-proxy
		return findings.Skip("Calico looks at policies behind kube-proxy, as at those of agents")
	}
	out := in.unread("networkpolicies")
	if with := in.Found().Egress; len(with) > 0 {
		out = append(out, findings.Failed("", "nothing is probed under the policies on egress of namespaces %s", firstFive(with)))
	}
	return out
}
