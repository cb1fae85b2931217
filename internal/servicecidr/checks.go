package servicecidr

import (
	"fmt"
	"net/netip"
	"sort"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/addr"
	"github.com/replumb/replumb/internal/bridge"
	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
)

// Input is what the checks look at.
type Input struct {
	Snapshot *cluster.Snapshot
	Survey   *Survey
}

func (in Input) spec() Spec { return in.Survey.Spec }

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []check.Check[Input] {
	return append(clusterChecks(), rangeChecks()...)
}

func clusterChecks() []check.Check[Input] {
	return []check.Check[Input]{
		{
			Code: "RP1001", Severity: check.Blocking, Run: checkVersion,
			Claim: "the API server has ServiceCIDRs (Kubernetes 1.33 or later)",
			Fix:   "upgrade the cluster to Kubernetes 1.33 or later first",
		},
		{
			Code: "RP1002", Severity: check.Blocking, Run: checkRights,
			Claim: "the user may do everything the plan needs",
			Fix:   "bind the ClusterRole in deploy/rbac.yaml to the user",
		},
		{
			Code: "RP1003", Severity: check.Warning, Run: checkNodesReady,
			Claim: "every node is ready",
			Fix:   "repair or remove the node; until then it cannot be proven that it knows the bridges",
		},
		{
			Code:     "RP1004",
			Severity: check.Blocking,
			Run:      checkBridgeForm,
			Claim:    "admission accepts a form of bridge",
			Fix:      "exempt Services with the label replumb.dev/role=bridge from the policy that refuses them, or set spec.serviceCIDR.bridge to the form it accepts",
		},
		{
			Code: "RP1005", Severity: check.Warning, Run: checkExternalIPs,
			Claim: "bridges do not depend on externalIPs, which Kubernetes is about to drop (KEP-5707)",
			Fix:   "set spec.serviceCIDR.bridge: LoadBalancer, or finish the migration before upgrading Kubernetes",
		},
		{
			Code: "RP1006", Severity: check.Blocking, Run: checkDomain,
			Claim: "spec.serviceCIDR.clusterDomain is the domain the kubelets use",
			Fix:   "set spec.serviceCIDR.clusterDomain to the kubelets' clusterDomain",
		},
		{
			Code:     "RP1007",
			Severity: check.Warning,
			Run:      checkDomainKnown,
			Claim:    "the kubelets tell their cluster domain",
			Fix:      "compare spec.serviceCIDR.clusterDomain with the kubelets' configuration by hand; a wrong domain breaks names in the middle of a hop",
		},
		{
			Code: "RP1008", Severity: check.Warning, Run: checkBarrier,
			Claim: "it is proven that nodes know the bridges before a Service moves",
			Fix:   "set spec.serviceCIDR.barrier.mode: HealthCheck, and let the API server reach the nodes' health-check ports",
		},
		{
			Code: "RP1009", Severity: check.Blocking, Run: checkNames,
			Claim: "the names that replumb needs are free or its own",
			Fix:   "rename or remove the object, or give the Migration another name",
		},
		{
			Code: "RP1010", Severity: check.Blocking, Run: checkOtherMigration,
			Claim: "no Service belongs to another migration",
			Fix:   "finish or roll back the other migration first",
		},
		{
			Code:     "RP1011",
			Severity: check.Blocking,
			Run:      checkAnnotations,
			Claim:    "what replumb wrote on the Services can be read",
			Fix:      "restore the annotations replumb.dev/old-cluster-ip and replumb.dev/target-cluster-ip; those of the Service's bridge have the same values",
		},
	}
}

func rangeChecks() []check.Check[Input] {
	return []check.Check[Input]{
		{
			Code: "RP1101", Severity: check.Blocking, Run: checkFamily,
			Claim: "the target is of the cluster's IP family",
			Fix:   "choose a target of the family of the cluster's Service ranges",
		},
		{
			Code: "RP1102", Severity: check.Blocking, Run: checkPods,
			Claim: "the target overlaps no node's pod range",
			Fix:   "choose another target in spec.serviceCIDR.to",
		},
		{
			Code: "RP1103", Severity: check.Blocking, Run: checkNodeAddresses,
			Claim: "the target holds no node's address",
			Fix:   "choose another target in spec.serviceCIDR.to",
		},
		{
			Code: "RP1104", Severity: check.Blocking, Run: checkServiceRanges,
			Claim: "the target overlaps no other Service range",
			Fix:   "choose a target that is exactly an existing ServiceCIDR, or overlaps none",
		},
		{
			Code: "RP1105", Severity: check.Blocking, Run: checkSize,
			Claim: "the target is large enough for the Services and their bridges",
			Fix:   "choose a larger target; during the move every Service needs two addresses in it",
		},
	}
}

func checkVersion(in Input) []check.Result {
	v := in.Snapshot.Version
	major, errMajor := strconv.Atoi(strings.TrimRight(v.Major, "+"))
	minor, errMinor := strconv.Atoi(strings.TrimRight(v.Minor, "+"))
	if errMajor != nil || errMinor != nil {
		return []check.Result{check.NotKnown("", "the API server's version %q cannot be read", v.GitVersion)}
	}
	if major == 1 && minor < 33 {
		return []check.Result{check.Failed("", "the API server is %s", v.GitVersion)}
	}
	return nil
}

func checkRights(in Input) []check.Result {
	var out []check.Result
	for _, a := range in.Snapshot.Access {
		if !a.Allowed {
			out = append(out, check.Failed("", "no right to %s", a.Right))
		}
	}
	return out
}

func checkNodesReady(in Input) []check.Result {
	var out []check.Result
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		if !cluster.NodeReady(n) {
			out = append(out, check.Failed("Node "+n.Name, "node %s is not ready", n.Name))
		}
	}
	return out
}

func checkBridgeForm(in Input) []check.Result {
	wish, needed := in.spec().Bridge, len(in.Survey.Moves)
	if needed == 0 || len(in.Snapshot.Admitted) == 0 {
		return nil
	}
	if _, ok := bridge.Choose(wish, needed, in.Snapshot.Admitted); ok {
		return nil
	}
	var out []check.Result
	for _, form := range bridge.Candidates(wish, needed) {
		if err := in.Snapshot.Admitted[form]; err != nil {
			out = append(out, check.Failed("", "a bridge in the form %s is refused: %v", form, err))
		} else {
			out = append(out, check.NotKnown("", "a bridge in the form %s was not tried", form))
		}
	}
	return out
}

func checkExternalIPs(in Input) []check.Result {
	form, ok := bridge.Choose(in.spec().Bridge, len(in.Survey.Moves), in.Snapshot.Admitted)
	if !ok || form != v1alpha1.BridgeExternalIPs {
		return nil
	}
	if err := in.Snapshot.Admitted[v1alpha1.BridgeLoadBalancer]; err != nil {
		return []check.Result{check.Failed("", "bridges will use externalIPs, because the form LoadBalancer is refused: %v", err)}
	}
	return []check.Result{check.Failed("", "bridges will use externalIPs")}
}

func checkDomain(in Input) []check.Result {
	var out []check.Result
	for _, node := range sortedKeys(in.Snapshot.Kubelets) {
		a := in.Snapshot.Kubelets[node]
		if a.Err == nil && a.Domain != in.spec().Domain {
			out = append(
				out,
				check.Failed("Node "+node, "the kubelet of node %s uses %s, the Migration says %s", node, a.Domain, in.spec().Domain),
			)
		}
	}
	return out
}

func checkDomainKnown(in Input) []check.Result {
	var out []check.Result
	for _, node := range sortedKeys(in.Snapshot.Kubelets) {
		if err := in.Snapshot.Kubelets[node].Err; err != nil {
			out = append(out, check.NotKnown("Node "+node, "the kubelet of node %s did not say: %v", node, err))
		}
	}
	return out
}

func sortedKeys(m map[string]cluster.KubeletAnswer) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func checkBarrier(in Input) []check.Result {
	if in.spec().Barrier == v1alpha1.BarrierWait {
		return []check.Result{
			check.Failed("", "barrier mode Wait only lets %s pass; a node that is slower than that loses requests", in.spec().BarrierWait),
		}
	}
	return nil
}

func checkNames(in Input) []check.Result {
	var out []check.Result
	for i := range in.spec().To {
		name := RangeName(in.spec(), i)
		for _, c := range in.Snapshot.ServiceCIDRs {
			if c.Name == name && c.Labels[v1alpha1.LabelMigration] != in.spec().Name && !isExactly(c.Spec.CIDRs, in.spec().To[i]) {
				out = append(out, check.Failed("ServiceCIDR "+name, "servicecidr %s exists and is not of this migration", name))
			}
		}
	}
	byKey := map[types.NamespacedName]*corev1.Service{}
	for i := range in.Snapshot.Services {
		svc := &in.Snapshot.Services[i]
		byKey[types.NamespacedName{Namespace: svc.Namespace, Name: svc.Name}] = svc
	}
	for _, e := range in.Survey.Moves {
		if have := byKey[e.BridgeKey()]; have != nil && have.Labels[v1alpha1.LabelRole] != v1alpha1.RoleBridge {
			out = append(out, check.Failed("Service "+e.BridgeKey().String(), "service %s exists and is not a bridge", e.BridgeKey()))
		}
	}
	return out
}

func isExactly(cidrs []string, p netip.Prefix) bool {
	return len(cidrs) == 1 && cidrs[0] == p.String()
}

func checkOtherMigration(in Input) []check.Result {
	var out []check.Result
	for _, e := range in.Survey.Stays {
		owner := e.Service.Annotations[v1alpha1.LabelMigration]
		if owner != "" && owner != in.spec().Name {
			out = append(out, check.Failed("Service "+e.Key().String(), "service %s belongs to migration %s", e.Key(), owner))
		}
	}
	return out
}

func checkAnnotations(in Input) []check.Result {
	var out []check.Result
	for _, e := range in.Survey.Stays {
		if e.Damaged {
			out = append(out, check.Failed("Service "+e.Key().String(), "service %s %s", e.Key(), e.Reason))
		}
	}
	return out
}

func checkFamily(in Input) []check.Result {
	want4 := in.spec().To[0].Addr().Is4()
	seen := false
	for _, c := range in.Snapshot.ServiceCIDRs {
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			seen = seen || err == nil
			if err == nil && p.Addr().Is4() == want4 {
				return nil
			}
		}
	}
	if !seen {
		return nil
	}
	return []check.Result{check.Failed("", "target %s is of a family in which the cluster has no Service range", in.spec().To[0])}
}

func checkPods(in Input) []check.Result {
	var out []check.Result
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		for _, text := range n.Spec.PodCIDRs {
			p, err := netip.ParsePrefix(text)
			for _, to := range in.spec().To {
				if err == nil && to.Overlaps(p) {
					out = append(out, check.Failed("Node "+n.Name, "target %s overlaps the pod range %s of node %s", to, p, n.Name))
				}
			}
		}
	}
	return out
}

func checkNodeAddresses(in Input) []check.Result {
	var out []check.Result
	for i := range in.Snapshot.Nodes {
		n := &in.Snapshot.Nodes[i]
		for _, address := range n.Status.Addresses {
			a, err := netip.ParseAddr(address.Address)
			for _, to := range in.spec().To {
				if err == nil && to.Contains(a) {
					out = append(out, check.Failed("Node "+n.Name, "target %s holds the address %s of node %s", to, a, n.Name))
				}
			}
		}
	}
	return out
}

func checkServiceRanges(in Input) []check.Result {
	var out []check.Result
	for _, c := range in.Snapshot.ServiceCIDRs {
		for _, text := range c.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			for _, to := range in.spec().To {
				if err == nil && p != to && to.Overlaps(p) {
					out = append(
						out,
						check.Failed("ServiceCIDR "+c.Name, "target %s overlaps the Service range %s of servicecidr %s", to, p, c.Name),
					)
				}
			}
		}
	}
	return out
}

// checkSize counts a target and a bridge for each Service, the two reserved addresses, and one sentinel.
func checkSize(in Input) []check.Result {
	foreign := 0
	for i := range in.Snapshot.IPAddresses {
		ip := &in.Snapshot.IPAddresses[i]
		a, err := netip.ParseAddr(ip.Name)
		if _, held := bridge.HeldFor(ip); err == nil && !held && addr.Contains(in.spec().To, a) {
			foreign++
		}
	}
	for _, e := range in.Survey.Moves {
		if e.Place == Moved {
			foreign--
		}
		if e.Bridge != nil {
			foreign--
		}
	}
	need := 2*len(in.Survey.Moves) + 3 + max(0, foreign)
	if have := addr.Size(in.spec().To, need); have < need {
		return []check.Result{check.Failed("", "target %s has %d addresses; %d Services and their bridges need %d",
			joinRanges(in.spec().To), have, len(in.Survey.Moves), need)}
	}
	return nil
}

func joinRanges(all []netip.Prefix) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, ", ")
}

// Rights are everything that apply, finish and rollback need. deploy/rbac.yaml grants exactly these.
func Rights() []cluster.Right {
	var all []cluster.Right
	for _, r := range []struct{ group, resource, subresource, verbs string }{
		{"", "nodes", "", "list"},
		{"", "nodes", "proxy", "get"},
		{"", "namespaces", "", "get list create delete"},
		{"", "services", "", "get list create patch delete"},
		{"", "services", "status", "patch"},
		{"networking.k8s.io", "servicecidrs", "", "get list create patch delete"},
		{"networking.k8s.io", "ipaddresses", "", "get list create delete"},
		{"discovery.k8s.io", "endpointslices", "", "list create delete"},
		{"apiextensions.k8s.io", "customresourcedefinitions", "", "get create update"},
		{"replumb.dev", "migrations", "", "get list create update"},
		{"replumb.dev", "migrations", "status", "update"},
	} {
		for _, verb := range strings.Fields(r.verbs) {
			all = append(all, cluster.Right{Verb: verb, Group: r.group, Resource: r.resource, Subresource: r.subresource})
		}
	}
	return all
}

// DeniedError says that the cluster could not even be looked at.
type DeniedError struct {
	Rights []cluster.Right
}

func (e *DeniedError) Error() string {
	texts := make([]string, len(e.Rights))
	for i, r := range e.Rights {
		texts[i] = r.String()
	}
	return fmt.Sprintf("the user has no right to %s", strings.Join(texts, ", "))
}
