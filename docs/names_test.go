package docs_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/reporting/metrics"
)

var (
	ofReplumb = regexp.MustCompile(`\breplumb\.dev(?:\.node-restriction\.kubernetes\.io)?/[a-z][a-z0-9-]*[a-z0-9]`)
	metric    = regexp.MustCompile(`\breplumb_[a-z_]+[a-z]\b`)
	series    = regexp.MustCompile(`_(bucket|count|sum)$`)
	code      = regexp.MustCompile(`\bRP\d{4}\b`)
	fieldPath = regexp.MustCompile(`\b(?:spec|status)\.[a-z][A-Za-z0-9]*(?:(?:\[\w*\])*\.[a-z][A-Za-z0-9]*)*`)
	index     = regexp.MustCompile(`\[\w*\]`)
)

// otherFields are fields of other kinds of objects that pages name, by the kind.
var otherFields = map[string]string{
	"spec.additionalSans":                                            "Cluster of kOps, v1alpha2",
	"spec.clusterName":                                               "MachineHealthCheck of Cluster API",
	"spec.clusterNetwork":                                            "Cluster of Cluster API, and Network of OpenShift",
	"spec.kubeAPIServer.featureGates":                                "Cluster of kOps",
	"spec.kubelet":                                                   "Cluster of kOps",
	"spec.kubeadmConfigSpec.clusterConfiguration":                    "KubeadmControlPlane of Cluster API",
	"spec.kubeadmConfigSpec.clusterConfiguration.networking":         "the same",
	"spec.kubeadmConfigSpec.clusterConfiguration.apiServer.certSANs": "the same",
	"spec.serviceClusterIPRange":                                     "Cluster of kOps",
	"spec.serviceNetwork":                                            "Network of OpenShift",
	"spec.calicoNetwork.ipPools":                                     "Installation of Calico's operator",
	"spec.cidr":                                                      "IPPool of Calico",
	"spec.cidrs":                                                     "ServiceCIDR",
	"spec.clusterIP":                                                 "Service",
	"spec.externalIPs":                                               "Service",
	"spec.go":                                                        "none: it is a file",
	"spec.nonMasqueradeCIDR":                                         "Cluster of kops",
	"spec.podCIDRs":                                                  "Node",
	"spec.providerID":                                                "Node",
	"spec.network":                                                   "LabMachine, of which the lab makes a machine for Cluster API",
	"spec.suspend":                                                   "CronJob",
	"spec.unschedulable":                                             "Node",
	"status.addresses":                                               "Node",
	"status.podIPs":                                                  "Pod",
	"status.nodeRef.name":                                            "Machine of Cluster API",
}

// names are the names of one sort that exist.
type names struct {
	// sort is what they are called, found what looks like one.
	sort  string
	found *regexp.Regexp
	all   []string
	// same is the name by which one is looked for.
	same func(name string) string
}

// unknown are the names in a file that do not exist.
func (n names) unknown(f textFile) []string {
	var wrong []string
	for _, name := range n.found.FindAllString(f.text, -1) {
		looked := name
		if n.same != nil {
			looked = n.same(name)
		}
		if !slices.Contains(n.all, looked) {
			wrong = append(wrong, fmt.Sprintf("there is no %s %s", n.sort, name))
		}
	}
	return wrong
}

// firstCells are those of the rows of all tables of a page that begin with code.
func firstCells(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, found := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		all = append(all, found[1])
	}
	if len(all) == 0 {
		t.Fatalf("%s has no table", file)
	}
	return all
}

const annotationsPage = "annotations.md"

// marks are the labels, annotations and taints, by the page that is generated of them, and what else has the domain.
func marks(t *testing.T) names {
	t.Helper()
	all := append(firstCells(t, annotationsPage), v1alpha1.LoadBalancerClass, v1alpha1.GroupVersion.String())
	all = slices.DeleteFunc(all, func(name string) bool { return name == v1alpha1.LabelAgentsBefore }) // it says nothing any more
	return names{sort: "label or annotation", found: ofReplumb, all: all}
}

func metricNames(t *testing.T) names {
	t.Helper()
	all, err := metrics.Descriptions()
	if err != nil {
		t.Fatal(err)
	}
	n := names{sort: "metric", found: metric, same: func(name string) string { return series.ReplaceAllString(name, "") }}
	for _, d := range all {
		n.all = append(n.all, d.Name)
	}
	return n
}

func findingCodes() names {
	n := names{sort: "finding", found: code}
	for _, checks := range everyCheck() {
		for _, c := range checks {
			n.all = append(n.all, c.Code)
		}
	}
	return n
}

// fieldPaths are those of the page that is generated of them, whatever the entries of lists are called, and those of other kinds.
func fieldPaths(t *testing.T) names {
	t.Helper()
	n := names{sort: "field", found: fieldPath, same: func(name string) string { return index.ReplaceAllString(name, "") }}
	for _, cell := range firstCells(t, "api.md") {
		n.all = append(n.all, n.same(cell))
	}
	for name := range otherFields {
		n.all = append(n.all, name)
	}
	return n
}

// TestNames: every label, annotation, metric, finding and field that pages and examples name exists.
func TestNames(t *testing.T) {
	for _, n := range []names{marks(t), metricNames(t), findingCodes(), fieldPaths(t)} {
		seen := 0
		problems(t, func(f textFile) []string {
			if f.name == "docs/"+annotationsPage {
				return nil // where names are from
			}
			seen += len(n.found.FindAllString(f.text, -1))
			return n.unknown(f)
		})
		if seen < 10 {
			t.Errorf("only %d of sort %s were found", seen, n.sort)
		}
	}
}

// TestOtherFields: what is listed as another kind's is none of a Migration's, and is named somewhere.
func TestOtherFields(t *testing.T) {
	all := readers(t)
	own := firstCells(t, "api.md")
	for name := range otherFields {
		if slices.Contains(own, name) {
			t.Errorf("%s is a field of a Migration", name)
		}
		if !slices.ContainsFunc(all, func(f textFile) bool { return strings.Contains(f.text, name) }) {
			t.Errorf("%s is named nowhere", name)
		}
	}
}

// TestUnknownNames shows what is found.
func TestUnknownNames(t *testing.T) {
	for _, tt := range []struct {
		in   names
		text string
		want int
	}{
		{marks(t), "`replumb.dev/tier` and replumb.dev/v1alpha1, replumb.dev/break-glass-", 0},
		{marks(t), "`replumb.dev/teir`", 1},
		{marks(t), "replumb.dev.node-restriction.kubernetes.io/agent", 1},
		{metricNames(t), "replumb_run_state, replumb_barrier_wait_seconds_bucket{le=\"1\"}", 0},
		{metricNames(t), "replumb_run_states", 1},
		{findingCodes(), "RP1001", 0},
		{findingCodes(), "RP1001 RP9999", 1},
		{fieldPaths(t), "spec.serviceCIDR. And spec.tiers[0].name, status.counts.moved", 0},
		{fieldPaths(t), "spec.serviceCIDRs", 1},
		{fieldPaths(t), "spec.proof.probes[].label", 1},
	} {
		if got := tt.in.unknown(textFile{"x.md", tt.text}); len(got) != tt.want {
			t.Errorf("%s: %q", tt.text, got)
		}
	}
}
