package checks

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1501", Severity: findings.Warning, Run: checkPins,
			Claim: "every manifest leaves the clusterIP of a moving Service open",
			Why: "applying the manifest again asks for the old address: the API server refuses it as immutable, and the release or " +
				"sync fails; tools that replace objects would delete the Service",
			Fix: "take spec.clusterIP out of the manifest, chart or values and apply it once before the migration, or leave the Service where it is with the annotation " +
				"replumb.dev/strategy: pin. kubeadm has that of kube-dns from networking.serviceSubnet, which changes at the gate of API servers",
		},
		{
			Code: "RP1502", Severity: findings.Warning, Run: checkBudgets,
			Claim: "every PodDisruptionBudget allows a disruption",
			Why:   "pods under it cannot be evicted, so they keep old addresses in their environment until they are restarted otherwise",
			Fix:   "let it allow one pod to go (maxUnavailable: 1, or more replicas than minAvailable) for the time of the migration",
		},
		{
			Code: "RP1503", Severity: findings.Warning, Run: checkGaps,
			Claim: "every workload keeps serving while it is restarted",
			Why:   "a workload that ends its pod before the next one is ready gives no answer in between; no agent sees that",
			Fix: "give it a second pod for the time of the migration, or a strategy that starts the new pod first (a " +
				"Deployment: RollingUpdate with maxSurge above 0). Where neither is possible, set " +
				"spec.serviceCIDR.refresh.mode: Report and restart it yourself before finish",
		},
		{
			Code: "RP1504", Severity: findings.Warning, Run: checkUnfinished,
			Claim: "every workload that is restarted has all its pods now",
			Why: "a restart repairs no unhealthy workload: apply waits a minute for it, leaves it alone, and names its pods as " +
				"those that keep old addresses",
			Fix: "repair it, or scale it to zero; apply restarts it when it is run again",
		},
		{
			Code: "RP1505", Severity: findings.Warning, Run: checkDNSRestart,
			Claim: "cluster DNS keeps answering while its pods are restarted",
			Why: "nodes send the datagrams of a source port where they sent them before, for as long as they remember, " +
				"and so to a pod that has just ended. Where clients look up hundreds of names each second, some " +
				"answers are lost, and those look-ups take seconds",
			Fix: "set spec.serviceCIDR.refresh.leaveFirst: UDP, with which each pod leaves its Services first, in a " +
				"Deployment with RollingUpdate. Else have every node know a new pod before an old one ends, and the " +
				"old one answer meanwhile: two replicas or more, maxUnavailable: 0, maxSurge: 1 and minReadySeconds: " +
				"10 in the Deployment, and lameduck 5s or more in plugin health of the Corefile. With NodeLocal " +
				"DNSCache the question does not come up. spec.serviceCIDR.refresh.mode: Report leaves the restart to " +
				"you",
		},
		{
			Code: "RP1506", Severity: findings.Warning, Run: checkKubeletRestarts,
			Claim: "every Service keeps ready pods while a kubelet restarts",
			Why: "gate kubelets asks for kubelets to be restarted; before Kubernetes 1.35 one that starts says of pods with a readiness probe that they are not ready, " +
				"until it has probed them (kubernetes/kubernetes#100277): a Service without another pod refuses connections for as long",
			Fix: "give it a second pod on another node for that time, and restart kubelets one after the other, each once the pods of the one before are ready again",
		},
	}
}

func (in Input) unseen() []findings.Result {
	if in.Workloads == nil && len(in.Inventory.Moves) > 0 {
		return []findings.Result{findings.NotKnown("", "the workloads of the cluster were not looked at")}
	}
	return nil
}

func checkGaps(in Input) []findings.Result {
	out := in.unseen()
	for i := range in.Restarts {
		w := &in.Restarts[i]
		if gap := in.Workloads.Gap(w); gap != "" {
			out = append(out, findings.Failed(w.String(), "%s %s", w, gap))
		}
	}
	return out
}

func checkUnfinished(in Input) []findings.Result {
	out := in.unseen()
	for i := range in.Restarts {
		if w := &in.Restarts[i]; w.Unfinished != "" {
			out = append(out, findings.Failed(w.String(), "%s is not complete: %s", w, w.Unfinished))
		}
	}
	return out
}

// dnsSettle covers the longest usual time between two syncs of a kube-proxy.
const dnsSettle = 5 * time.Second

func checkDNSRestart(in Input) []findings.Result {
	out := in.unseen()
	if len(in.Restarts) == 0 {
		return out
	}
	before := services.NewByWorkload(in.Inventory, in.Workloads)
	for i := range in.Restarts {
		w := &in.Restarts[i]
		if !before.ServesDNS(w) || before.LeavesFirst(w) {
			continue
		}
		if gap := in.Workloads.Gap(w); gap != "" {
			continue // RP1503 says it
		}
		if !in.Workloads.Overlaps(w, dnsSettle) {
			out = append(out, findings.Failed(w.String(),
				"%s may end a pod before every node knows the next one (maxUnavailable, minReadySeconds)", w))
		}
		if file := in.Found().Abrupt[w.Namespace]; file != "" {
			out = append(out, findings.Failed(w.String(), "%s ends at once: the Corefile in %s has no lameduck", w, file))
		}
	}
	return out
}

func checkPins(in Input) []findings.Result {
	var out []findings.Result
	for _, e := range in.Inventory.Moves {
		object := "Service " + e.Key().String()
		if ip := lastApplied(e.Service); ip != "" {
			out = append(out,
				findings.Failed(object, "the manifest of service %s that kubectl apply saw last pins clusterIP %s", e.Key(), ip))
		}
		for _, owner := range in.Snapshot.ClusterIPOwners[e.Key()] {
			if comesBack(owner) {
				out = append(out, findings.Failed(object, "%s set the clusterIP of service %s, and will again", owner.Manager, e.Key()))
			}
		}
	}
	return out
}

func lastApplied(svc *corev1.Service) string {
	var manifest struct {
		Spec struct {
			ClusterIP string `json:"clusterIP"`
		} `json:"spec"`
	}
	if json.Unmarshal([]byte(svc.Annotations[corev1.LastAppliedConfigAnnotation]), &manifest) != nil {
		return ""
	}
	if _, err := netip.ParseAddr(manifest.Spec.ClusterIP); err != nil { // "" or None
		return ""
	}
	return manifest.Spec.ClusterIP
}

// comesBack reports whether a field manager writes the same again, as server-side apply does and
// tools that keep manifests. kubectl apply is known by its annotation.
func comesBack(owner inventory.FieldOwner) bool {
	name := strings.ToLower(owner.Manager)
	return owner.Applies || slices.ContainsFunc(
		[]string{
			"helm",
			"argocd",
			"argo-cd",
			"flux",
			"kustomize-controller",
			"kubeadm",
			"terraform",
			"hashicorp",
			"pulumi",
			"ansible",
			"rancher",
		},
		func(tool string) bool { return strings.HasPrefix(name, tool) },
	)
}

func checkBudgets(in Input) []findings.Result {
	out := in.unread("poddisruptionbudgets")
	for _, b := range in.Found().Stuck {
		out = append(out, findings.Failed("PodDisruptionBudget "+b.Name, "poddisruptionbudget %s never lets a pod go: %s", b.Name, b.Rule))
	}
	return out
}
