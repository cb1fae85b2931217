package drained

import (
	"net/netip"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/migrations/cni/switchover"
)

// Checks are about a cluster that is to serve no one, and whose pods are without a network for a
// while.
func Checks() []findings.Check[switchover.Input] {
	return slices.Concat(
		findings.Group("Cluster",
			findings.Check[switchover.Input]{
				Code: "RP5004", Severity: findings.Blocking, Run: inDrained(checkWebhooks),
				Claim: "admission webhooks answer while pods are without a network",
				Why: "a webhook with failurePolicy Fail that is answered by pods refuses everything that it cannot be asked about: the pods of the " +
					"new network, without which it cannot answer",
				Fix: "leave kube-system, replumb-system and the namespaces of the manifests out by its namespaceSelector, or set failurePolicy: Ignore; " +
					"where a hook before phase remove does that, name the webhook in spec.cni.vouch.webhooks: what a hook does cannot be seen before",
			},
			findings.Check[switchover.Input]{
				Code: "RP5005", Severity: findings.Warning, Run: inDrained(checkDowntime),
				Claim: "clients are gone before pods lose their network",
				Why:   "requests to this cluster fail until its pods have been recreated",
				Fix:   "lead traffic to another cluster first (spec.mirror), and leave spec.cni.traffic.proof at Counters",
			},
			findings.Check[switchover.Input]{
				Code: "RP5008", Severity: findings.Blocking, Run: inDrained(checkIgnored),
				Claim: "every client address is watched",
				Why: "a balancer that forwards connections as its own has one address for health checks and for all of its clients: to leave that " +
					"out proves nothing, and the clients are cut off",
				Fix: "see at the balancer that no client is led to this cluster any more, and say so for the range in spec.cni.vouch.quiet",
			},
		),
		findings.Group("Workloads",
			findings.Check[switchover.Input]{
				Code: "RP5304", Severity: findings.Warning, Run: inDrained(checkBare),
				Claim: "every pod has an owner that recreates it",
				Why:   "replumb recreates pods that no one owns as they were, but what was in them is gone, and a moment passes",
				Fix:   "give it to a Deployment or StatefulSet if that matters",
			},
			findings.Check[switchover.Input]{
				Code: "RP5305", Severity: findings.Warning, Run: inDrained(checkJobs),
				Claim: "every Job has ended",
				Why:   "its pod ends and the Job starts over, which may count as a failure",
				Fix:   "wait until it is done, and suspend CronJobs",
			},
		),
	)
}

// inDrained is a check that has nothing to say of other strategies.
func inDrained(check func(Strategy) []findings.Result) func(switchover.Input) []findings.Result {
	return func(in switchover.Input) []findings.Result {
		if s, ok := in.Strategy.(Strategy); ok {
			return check(s)
		}
		return findings.Skip("spec.cni.mode is not Drained")
	}
}

// checkWebhooks does not count hooks: their effect is seen when they have run, and then it is too
// late to find another.
func checkWebhooks(s Strategy) []findings.Result {
	var out []findings.Result
	namespaces := writtenNamespaces(s.Manifests)
	for i := range s.Webhooks {
		w := &s.Webhooks[i]
		if blocks(w, namespaces) && !slices.Contains(s.Spec.Vouch.Webhooks, w.Name) {
			out = append(out, findings.Failed(w.Config,
				"webhook %s in %s refuses what Service %s cannot be asked about", w.Name, w.Config, w.Service))
		}
	}
	return out
}

// blocks reports whether a webhook is asked about objects of the manifests, and about pods and
// DaemonSets of the network and of replumb. A selector that leaves all of their namespaces out
// keeps it from that.
func blocks(w *switchover.Webhook, namespaces []string) bool {
	about := slices.ContainsFunc(w.Rules, func(r admissionv1.RuleWithOperations) bool {
		return slices.ContainsFunc(r.Resources, func(resource string) bool {
			resource, _, _ = strings.Cut(resource, "/")
			return slices.Contains([]string{
				"*", "pods", "nodes", "daemonsets", "controllerrevisions", "configmaps", "serviceaccounts", "namespaces", "clusterroles",
				"clusterrolebindings", "customresourcedefinitions",
			}, resource)
		})
	})
	if !about || w.Namespaces == nil {
		return about
	}
	selector, err := metav1.LabelSelectorAsSelector(w.Namespaces)
	if err != nil {
		return true
	}
	return slices.ContainsFunc(namespaces, func(ns string) bool {
		return selector.Matches(labels.Set{corev1.LabelMetadataName: ns})
	})
}

// writtenNamespaces are those in which something has to be written while pods have no network.
func writtenNamespaces(m *manifests.ManifestSet) []string {
	all := []string{metav1.NamespaceSystem, v1alpha1.SystemNamespace}
	if m != nil {
		for _, o := range m.Objects {
			if ns := o.GetNamespace(); ns != "" && !slices.Contains(all, ns) {
				all = append(all, ns)
			}
		}
	}
	return all
}

func checkDowntime(s Strategy) []findings.Result {
	if s.Begun() {
		return findings.Skip("pods have lost their network by now")
	}
	if s.Spec.Quiet {
		return nil
	}
	return []findings.Result{findings.Failed("", "no one looks whether the cluster serves clients")}
}

func checkIgnored(s Strategy) []findings.Result {
	if !s.Spec.Quiet || s.Begun() {
		return findings.Skip("no one looks whether the cluster serves clients")
	}
	var out []findings.Result
	for _, r := range s.Spec.Ignore {
		vouched := slices.ContainsFunc(s.Spec.VouchQuiet, func(v netip.Prefix) bool { return switchover.Covers(v, r) })
		if !vouched {
			out = append(out, findings.NotKnown(r.String(),
				"whether health checks or clients come from %s, which spec.cni.traffic.ignore leaves out, cannot be seen", r))
		}
	}
	return out
}

// checkBare leaves pods to RP5310 where all that is left is to recreate them once more.
func checkBare(s Strategy) []findings.Result {
	if switchover.OnlyAgain(s) {
		return findings.Skip("pods are only recreated once more (RP5310)")
	}
	var out []findings.Result
	for i := range s.Bare {
		name := s.Bare[i].Namespace + "/" + s.Bare[i].Name
		out = append(out, findings.Failed("Pod "+name, "no one owns pod %s", name))
	}
	return out
}

func checkJobs(s Strategy) []findings.Result {
	if switchover.OnlyAgain(s) {
		return findings.Skip("pods are only recreated once more (RP5310)")
	}
	var out []findings.Result
	for i := range s.Pods {
		p := &s.Pods[i]
		if ref := metav1.GetControllerOfNoCopy(p); switchover.Concerned(p) && ref != nil && ref.Kind == "Job" {
			out = append(out, findings.Failed("Job "+p.Namespace+"/"+ref.Name,
				"pod %s/%s of Job %s is running", p.Namespace, p.Name, ref.Name))
		}
	}
	return out
}
