package checks

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

// NewReferenceScanner looks for the old addresses and ranges (inventory.References).
func NewReferenceScanner(s *services.Inventory) (*references.Scanner, error) {
	old := make([]netip.Addr, 0, len(s.Moves))
	for _, e := range s.Moves {
		if e.Old.IsValid() {
			old = append(old, e.Old)
		}
	}
	return references.New(s.Spec.From, s.Spec.To, old)
}

func referenceChecks() []findings.Check[Input] {
	return slices.Concat(writtenChecks(), objectChecks())
}

func writtenChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1401", Severity: findings.Blocking, Run: checkVolumes,
			Claim: "every PersistentVolume is free of old addresses",
			Why:   "nodes mount such a volume by its address, after finish in vain, and the source of a PersistentVolume cannot be changed",
			Fix: "either leave the Service where it is with the annotation replumb.dev/strategy: pin; or, for each volume: set its " +
				"persistentVolumeReclaimPolicy to Retain, stop the pods that use it, delete claim and volume, and create both again with an " +
				"address outside the Service ranges",
		},
		{
			Code: "RP1402", Severity: findings.Warning, Run: checkWebhooks,
			Claim: "every webhook URL is free of old addresses",
			Why:   "after finish the API server would not reach the webhook, and with failurePolicy Fail refuse what it is asked about",
			Fix: "name the Service in clientConfig.service instead of clientConfig.url, or write the new address into the URL " +
				"before finish",
		},
		{
			Code: "RP1403", Severity: findings.Warning, Run: checkConfigMaps,
			Claim: "every ConfigMap is free of old addresses and ranges",
			Why: "programs that read them go on using old addresses, which stop answering at finish, or treat the new range as " +
				"foreign as soon as they use it, which is in apply (NO_PROXY)",
			Fix: "write the Service's name or its new address there, add the new range beside the old one, and restart " +
				"what reads it. Do so before apply for NO_PROXY, and before finish for all else",
		},
		{
			Code: "RP1404", Severity: findings.Warning, Run: checkTemplates,
			Claim: "every pod template is free of old addresses and ranges",
			Why: "its pods go on using old addresses, which stop answering at finish, or treat the new range as foreign as soon as they use it, " +
				"which is in apply (NO_PROXY)",
			Fix: "write the Service's name or its new address there, or add the new range beside the old one: in NO_PROXY before apply, else " +
				"before finish",
		},
		{
			Code: "RP1405", Severity: findings.Warning, Run: checkIPBlocks,
			Claim: "network policies treat the old and the new range alike",
			Why: "where the network plugin sees the Service's address, traffic that is allowed now would be denied after the move, or the " +
				"other way round",
			Fix: "add the target beside the old range (ipBlock.cidr or except, Calico's nets, Cilium's toCIDR, Istio's ipBlocks) before the " +
				"migration, or select pods instead",
		},
		{
			Code: "RP1406", Severity: findings.Blocking, Run: checkBypasses,
			Claim: "containers with a proxy reach Services without it",
			Why: "pods call the API server at KUBERNETES_SERVICE_HOST, which is in the new range from the moment " +
				"kubernetes moves, and API servers call webhooks and aggregated APIs at the addresses of their " +
				"Services. Unless NO_PROXY has the range, the proxy answers instead, in the middle of apply",
			Fix: "add the new range beside the old one to NO_PROXY, and restart what reads it, before apply (kube-apiserver: in its static pod, " +
				"on every control-plane node)",
		},
	}
}

func objectChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1407", Severity: findings.Warning, Run: checkSecrets,
			Claim: "every Secret is free of old addresses and ranges",
			Why: "connection strings and kubeconfigs in Secrets go on leading to old addresses, which stop answering at finish. Values are matched and " +
				"never shown. No role of replumb's may list Secrets: they are read where the user may by another role, and unknown where not",
			Fix: "write the Service's name or its new address there, and restart what reads it, before finish. Where Secrets were not read, look " +
				"yourself, or grant the right for one check (docs/rights.md)",
		},
		{
			Code: "RP1408", Severity: findings.Warning, Run: checkTraffic,
			Claim: "Services, Ingresses and endpoints made by hand are free of old addresses and ranges",
			Why: "endpoints and external names that lead to a Service's old address lead nowhere after finish; source ranges and annotations with the " +
				"old range alone refuse clients with a new address, or send them elsewhere",
			Fix: "write the new address there before finish, and the target beside the old range before apply; keep both until finish",
		},
		{
			Code: "RP1409", Severity: findings.Warning, Run: checkCustom,
			Claim: "custom resources are free of old addresses and ranges",
			Why: "meshes, gateways, certificates and DNS are set up by what stands there, and go on using old addresses, which stop answering at " +
				"finish. Values of a release (Flux, Argo CD, Helm of k3s and RKE2) that pin the clusterIP of a Service are refused by the API server " +
				"after the move, and their sync fails. All kinds that can be listed are searched, for half a minute",
			Fix: "write the Service's name or its new address there, or add it beside the old one, before finish; take a clusterIP out of the values " +
				"before apply. What was not looked at look through yourself",
		},
	}
}

func (in Input) references(resources []string, sort func(references.Reference) bool) []findings.Result {
	out := in.unread(resources...)
	for _, r := range in.Found().References {
		if sort(r) {
			out = append(out, findings.Failed(r.Object, "%s names %s in %s", r.Object, r.Names(), r.Field))
		}
	}
	return out
}

func ofKind(kinds ...string) func(references.Reference) bool {
	return func(r references.Reference) bool { return slices.Contains(kinds, r.Kind()) }
}

func checkVolumes(in Input) []findings.Result {
	return in.references([]string{"persistentvolumes"}, ofKind("PersistentVolume"))
}

func checkWebhooks(in Input) []findings.Result {
	return in.references(
		[]string{"validatingwebhookconfigurations", "mutatingwebhookconfigurations", "customresourcedefinitions"},
		ofKind("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "CustomResourceDefinition"),
	)
}

func checkConfigMaps(in Input) []findings.Result {
	return in.references([]string{"configmaps"}, func(r references.Reference) bool {
		return r.Kind() == "ConfigMap" && !inCorefile(r) && !in.changedAtGates(r)
	})
}

// changedAtGates reports whether a gate says when a ConfigMap of kubeadm's or of kube-proxy's
// changes, if at all: what takes one range of a family fails with the new one beside the old one.
func (in Input) changedAtGates(r references.Reference) bool {
	switch r.Object {
	case kubeadmConfig:
		return slices.Contains(controlPlaneGates(in.Inventory), gateAPIServers)
	case kubeletConfig:
		return len(in.Inventory.DNSMoves()) > 0
	}
	return in.Found().OfProxy(r)
}

func checkTemplates(in Input) []findings.Result {
	return in.references(
		[]string{"deployments", "statefulsets", "daemonsets", "jobs", "cronjobs", "pods"},
		func(r references.Reference) bool {
			return ofKind("Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob", "Pod")(r) && !in.calledByAddress(r)
		},
	)
}

// calledByAddress reports whether a program that goes past its proxy until now goes through it
// after the move: API servers do in any case, others if the Service kubernetes moves.
func (in Input) calledByAddress(r references.Reference) bool {
	return r.Bypass && (in.Inventory.Kubernetes() != nil || strings.HasPrefix(r.Object, "Pod kube-system/kube-apiserver"))
}

func checkBypasses(in Input) []findings.Result {
	out := in.references([]string{"deployments", "statefulsets", "daemonsets", "jobs", "cronjobs", "pods"}, in.calledByAddress)
	for i := range out {
		if out[i].Object != "" {
			out[i].Message += ", and not the new range, beside a proxy"
		}
	}
	return out
}

func checkIPBlocks(in Input) []findings.Result {
	return in.references(append([]string{"networkpolicies"}, inventory.PolicyResources()...), references.Reference.IsPolicy)
}

func checkSecrets(in Input) []findings.Result {
	return in.references([]string{"secrets"}, ofKind("Secret"))
}

func trafficKinds() func(references.Reference) bool {
	return ofKind("Service", "Ingress", "EndpointSlice", "Endpoints")
}

func checkTraffic(in Input) []findings.Result {
	return in.references([]string{"services", "ingresses", "endpointslices"}, trafficKinds())
}

func checkCustom(in Input) []findings.Result {
	builtin := ofKind(
		"PersistentVolume",
		"ValidatingWebhookConfiguration",
		"MutatingWebhookConfiguration",
		"CustomResourceDefinition",
		"ConfigMap",
		"Secret",
		"Deployment",
		"StatefulSet",
		"DaemonSet",
		"Job",
		"CronJob",
		"Pod",
	)
	return append(in.references(inventory.SettingResources(), func(r references.Reference) bool {
		return !builtin(r) && !trafficKinds()(r) && !r.IsPolicy()
	}), in.unsearched()...)
}

// unsearched has one result for each reason, with all kinds that it is the reason of.
func (in Input) unsearched() (out []findings.Result) {
	by := map[string][]string{}
	for name, why := range in.Found().Unsearched {
		by[why] = append(by[why], name)
	}
	for _, why := range slices.Sorted(maps.Keys(by)) {
		slices.Sort(by[why])
		out = append(out, findings.NotKnown("", "%s: %s", strings.Join(firstThree(by[why]), ", "), why))
	}
	return out
}
