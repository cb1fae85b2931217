package servicecidr

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

func workloadChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code:     "RP1501",
			Severity: findings.Warning,
			Run:      checkPins,
			Claim:    "no manifest pins the clusterIP of a Service that moves",
			Why: "applying the manifest again asks for the old address: the API server refuses it as immutable, and the release or " +
				"sync fails; tools that replace objects would delete the Service",
			Fix: "take spec.clusterIP out of the manifest, chart or values and apply it once before the migration (with kubeadm: change " +
				"serviceSubnet in the ConfigMap kubeadm-config before the next upgrade); or leave the Service where it is with the annotation " +
				"replumb.dev/strategy: pin",
		},
		{
			Code: "RP1502", Severity: findings.Warning, Run: checkBudgets,
			Claim: "no PodDisruptionBudget forbids every disruption",
			Why:   "pods under it cannot be evicted, so they keep old addresses in their environment until they are restarted otherwise",
			Fix:   "let it allow one pod to go (maxUnavailable: 1, or more replicas than minAvailable) for the time of the migration",
		},
	}
}

func checkPins(in Input) []findings.Result {
	var out []findings.Result
	for _, e := range in.Survey.Moves {
		object := "Service " + e.Key().String()
		if ip := lastApplied(e.Service); ip != "" {
			out = append(
				out,
				findings.Failed(object, "the manifest of service %s that kubectl apply saw last pins clusterIP %s", e.Key(), ip),
			)
		}
		for _, owner := range in.Snapshot.ClusterIPOwners[e.Key()] {
			if comesBack(owner) {
				out = append(out, findings.Failed(object, "%s set the clusterIP of service %s, and will again", owner.Manager, e.Key()))
			}
		}
	}
	return out
}

// lastApplied is the address in the annotation of kubectl apply; nothing if there is none.
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

// comesBack reports whether a field manager writes the same again: every server-side apply does, and of those that
// update objects, tools that keep manifests. kubectl apply is known by its annotation.
func comesBack(owner cluster.Owner) bool {
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
	for _, b := range in.found().Stuck {
		out = append(out, findings.Failed("PodDisruptionBudget "+b.Name, "poddisruptionbudget %s never lets a pod go: %s", b.Name, b.Rule))
	}
	return out
}
