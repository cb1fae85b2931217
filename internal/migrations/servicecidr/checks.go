package servicecidr

import (
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
)

// Input is what the checks look at.
type Input struct {
	Snapshot *cluster.Snapshot
	Survey   *Survey
	Live     cluster.Live
	// Freeze is why Services cannot be frozen; nil if they can.
	Freeze error
}

func (in Input) spec() Spec { return in.Survey.Spec }

// found is what was found by looking through the cluster; nothing if it was not looked through, which unread says.
func (in Input) found() *cluster.Inspection {
	if in.Live.Inspection == nil {
		return &cluster.Inspection{}
	}
	return in.Live.Inspection
}

// unread says which of the resources that a check is about could not be looked through.
func (in Input) unread(resources ...string) []findings.Result {
	if in.Live.Inspection == nil {
		return []findings.Result{findings.NotKnown("", "the cluster was not looked through")}
	}
	var missing []string
	for _, r := range resources {
		if _, yes := in.Live.Inspection.Unread[r]; yes {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []findings.Result{findings.NotKnown("", "the user may not read %s", strings.Join(missing, ", "))}
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("Services", serviceChecks()...),
		findings.Group("Ranges", rangeChecks()...),
		findings.Group("kube-proxy", proxyChecks()...),
		findings.Group("DNS", dnsChecks()...),
		findings.Group("Old addresses written down", referenceChecks()...),
		findings.Group("Manifests and workloads", workloadChecks()...),
	)
}

// Rights are everything that apply, finish and rollback need. deploy/rbac.yaml grants exactly these.
func Rights() []cluster.Right {
	all := neededRights()
	for _, r := range lookRights() {
		if !slices.Contains(all, r) {
			all = append(all, r)
		}
	}
	return all
}

// OptionalRight reports whether a right only lets checks look: without it their outcome is unknown, and everything else
// works.
func OptionalRight(r cluster.Right) bool {
	return slices.Contains(lookRights(), r) && !slices.Contains(neededRights(), r)
}

func neededRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "nodes", "", "get list"),
		cluster.Grant("", "nodes", "proxy", "get"),
		cluster.Grant("", "namespaces", "", "get list create delete"),
		cluster.Grant("", "services", "", "get list create patch delete"),
		cluster.Grant("", "services", "status", "patch"),
		cluster.Grant("", "configmaps", "", "list create update delete"),
		cluster.Grant("", "pods", "", "get list"),
		cluster.Grant("", "pods", "eviction", "create"),
		cluster.Grant("apps", "deployments", "", "get list watch patch"),
		cluster.Grant("apps", "statefulsets", "", "get list watch patch"),
		cluster.Grant("apps", "daemonsets", "", "get list watch patch"),
		cluster.Grant("apps", "replicasets", "", "get list"),
		cluster.Grant("batch", "jobs", "", "get list"),
		cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
		cluster.Grant("coordination.k8s.io", "leases", "", "get create update delete"),
		cluster.Grant("networking.k8s.io", "servicecidrs", "", "get list create patch delete"),
		cluster.Grant("networking.k8s.io", "ipaddresses", "", "get list create delete"),
		cluster.Grant("discovery.k8s.io", "endpointslices", "", "list watch create patch delete"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "get create update delete"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "get create update delete"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"),
		cluster.Grant("replumb.dev", "migrations", "", "get list create update"),
		cluster.Grant("replumb.dev", "migrations", "status", "update"),
	)
}

// lookRights are for what checks look through (cluster.References), and for what is a courtesy.
func lookRights() []cluster.Right {
	return slices.Concat(
		cluster.Grant("", "configmaps", "", "list"),
		cluster.Grant("", "events", "", "create"),
		cluster.Grant("", "persistentvolumes", "", "list"),
		cluster.Grant("", "pods", "", "list"),
		cluster.Grant("apps", "deployments", "", "list"),
		cluster.Grant("apps", "statefulsets", "", "list"),
		cluster.Grant("apps", "daemonsets", "", "list"),
		cluster.Grant("batch", "jobs", "", "list"),
		cluster.Grant("batch", "cronjobs", "", "list"),
		cluster.Grant("networking.k8s.io", "networkpolicies", "", "list"),
		cluster.Grant("policy", "poddisruptionbudgets", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"),
		cluster.Grant("admissionregistration.k8s.io", "validatingadmissionpolicies", "", "list"),
		cluster.Grant("apiextensions.k8s.io", "customresourcedefinitions", "", "list"),
		cluster.Grant("crd.projectcalico.org", "felixconfigurations", "", "get"),
	)
}
