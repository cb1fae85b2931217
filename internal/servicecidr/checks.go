package servicecidr

import (
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
)

// Input is what the checks look at.
type Input struct {
	Snapshot *cluster.Snapshot
	Survey   *Survey
	// Freeze is why Services cannot be frozen; nil if they can.
	Freeze error
}

func (in Input) spec() Spec { return in.Survey.Spec }

// found is what was found by looking through the cluster; nothing if nobody looked, which unread says.
func (in Input) found() *cluster.Inspection {
	if in.Snapshot.Inspection == nil {
		return &cluster.Inspection{}
	}
	return in.Snapshot.Inspection
}

// unread says which of the resources that a check is about could not be looked through.
func (in Input) unread(resources ...string) []check.Result {
	if in.Snapshot.Inspection == nil {
		return []check.Result{check.NotKnown("", "nobody looked")}
	}
	var missing []string
	for _, r := range resources {
		if _, yes := in.Snapshot.Inspection.Unread[r]; yes {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return []check.Result{check.NotKnown("", "the user may not read %s", strings.Join(missing, ", "))}
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []check.Check[Input] {
	return slices.Concat(
		check.Group("Cluster", clusterChecks()...),
		check.Group("Services", serviceChecks()...),
		check.Group("Ranges", rangeChecks()...),
		check.Group("kube-proxy", proxyChecks()...),
		check.Group("DNS", dnsChecks()...),
		check.Group("Old addresses written down", referenceChecks()...),
		check.Group("Manifests and workloads", workloadChecks()...),
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

// right is some verbs on a resource.
type right struct{ group, resource, subresource, verbs string }

func neededRights() []cluster.Right {
	return spread([]right{
		{"", "nodes", "", "get list"},
		{"", "nodes", "proxy", "get"},
		{"", "namespaces", "", "get list create delete"},
		{"", "services", "", "get list create patch delete"},
		{"", "services", "status", "patch"},
		{"", "configmaps", "", "list create update delete"},
		{"", "pods", "", "get list"},
		{"", "pods", "eviction", "create"},
		{"apps", "deployments", "", "get list watch patch"},
		{"apps", "statefulsets", "", "get list watch patch"},
		{"apps", "daemonsets", "", "get list watch patch"},
		{"apps", "replicasets", "", "get list"},
		{"batch", "jobs", "", "get list"},
		{"policy", "poddisruptionbudgets", "", "list"},
		{"coordination.k8s.io", "leases", "", "get create update delete"},
		{"networking.k8s.io", "servicecidrs", "", "get list create patch delete"},
		{"networking.k8s.io", "ipaddresses", "", "get list create delete"},
		{"discovery.k8s.io", "endpointslices", "", "list watch create patch delete"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies", "", "get create update delete"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicybindings", "", "get create update delete"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"},
		{"replumb.dev", "migrations", "", "get list create update"},
		{"replumb.dev", "migrations", "status", "update"},
	})
}

// lookRights are for what checks look through (cluster.References), and for what is a courtesy.
func lookRights() []cluster.Right {
	return spread([]right{
		{"", "configmaps", "", "list"},
		{"", "events", "", "create"},
		{"", "persistentvolumes", "", "list"},
		{"", "pods", "", "list"},
		{"apps", "deployments", "", "list"},
		{"apps", "statefulsets", "", "list"},
		{"apps", "daemonsets", "", "list"},
		{"batch", "jobs", "", "list"},
		{"batch", "cronjobs", "", "list"},
		{"networking.k8s.io", "networkpolicies", "", "list"},
		{"policy", "poddisruptionbudgets", "", "list"},
		{"admissionregistration.k8s.io", "validatingwebhookconfigurations", "", "list"},
		{"admissionregistration.k8s.io", "mutatingwebhookconfigurations", "", "list"},
		{"admissionregistration.k8s.io", "validatingadmissionpolicies", "", "list"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "list"},
		{"crd.projectcalico.org", "felixconfigurations", "", "get"},
	})
}

func spread(rights []right) []cluster.Right {
	var all []cluster.Right
	for _, r := range rights {
		for _, verb := range strings.Fields(r.verbs) {
			all = append(all, cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource})
		}
	}
	return all
}
