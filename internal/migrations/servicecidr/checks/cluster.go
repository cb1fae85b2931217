package checks

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/services"
)

func clusterChecks() []findings.Check[Input] {
	return slices.Concat(fitnessChecks(), bridgeChecks(), ownershipChecks())
}

func fitnessChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1001", Severity: findings.Blocking, Run: checkVersion,
			Claim: "the Service range is known: ServiceCIDRs, or a flag of the API servers",
			Why:   "a second Service range is a ServiceCIDR object, and an address is reserved by an IPAddress, or else by a Service that has it",
			Fix:   "find out from which range the API servers give addresses to Services",
		},
		{
			Code: "RP1002", Severity: findings.Blocking, Run: checkRights,
			Claim: "the user has every right that the plan needs",
			Why:   "a right that is missing would stop the migration in the middle of a move",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -",
		},
		{
			Code: "RP1003", Severity: findings.Warning, Run: checkNodesReady,
			Claim: "every node is ready",
			Why: "the kube-proxy of a node that is not ready cannot be asked whether it knows the bridges; clients on it may " +
				"lose requests",
			Fix: "repair or remove the node; until then it cannot be proven that it knows the bridges",
		},
	}
}

func bridgeChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1004", Severity: findings.Blocking, Run: checkBridgeForm,
			Claim: "admission accepts a form of bridge",
			Why:   "without a bridge the old address of a Service stops answering at the moment the Service moves",
			Fix: "exempt Services with the label replumb.dev/role=bridge from the policy that refuses them, or set spec.serviceCIDR.bridge to " +
				"the form it accepts. A webhook that cannot be called refuses every write: repair it, or delete its configuration",
		},
		{
			Code: "RP1005", Severity: findings.Warning, Run: checkExternalIPs,
			Claim: "bridges work without externalIPs, which Kubernetes is going to remove (KEP-5707)",
			Why:   "an upgrade to a Kubernetes without externalIPs while bridges stand would take the old addresses away at once",
			Fix:   "set spec.serviceCIDR.bridge: LoadBalancer, or finish the migration before upgrading Kubernetes",
		},
		{
			Code: "RP1006", Severity: findings.Blocking, Run: checkDomain,
			Claim: "spec.serviceCIDR.clusterDomain is the domain the kubelets use",
			Why: "in the middle of a move the name of a Service is an alias for its bridge, under this domain; with a wrong one " +
				"it leads nowhere",
			Fix: "set spec.serviceCIDR.clusterDomain to the kubelets' clusterDomain",
		},
		{
			Code: "RP1007", Severity: findings.Warning, Run: checkDomainKnown,
			Claim: "the kubelets report their cluster domain",
			Why:   "a domain that a kubelet does not report cannot be compared with spec.serviceCIDR.clusterDomain, nor can its cluster DNS address",
			Fix: "compare spec.serviceCIDR.clusterDomain with the kubelets' configuration by hand; a wrong domain breaks names in the middle " +
				"of a hop",
		},
		{
			Code: "RP1008", Severity: findings.Warning, Run: checkBarrier,
			Claim: "nodes prove that they know the bridges before a Service moves",
			Why:   "a node that does not know a bridge when its Service moves refuses connections to the old address",
			Fix:   "set spec.serviceCIDR.barrier.mode: HealthCheck, and let the API server reach the nodes' health-check ports",
		},
	}
}

func ownershipChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP1009", Severity: findings.Blocking, Run: checkNames,
			Claim: "the names that replumb needs are free or its own",
			Why:   "replumb does not take over objects that others made",
			Fix:   "rename or remove the object, or give the Migration another name",
		},
		{
			Code: "RP1010", Severity: findings.Blocking, Run: checkOtherMigration,
			Claim: "every Service is free of other migrations",
			Why:   "two migrations of one Service would undo each other",
			Fix:   "finish or roll back the other migration first",
		},
		{
			Code: "RP1011", Severity: findings.Isolating, Run: checkClaims,
			Claim: "notes on Services agree with replumb's records",
			Why: "anyone who can edit a Service can forge replumb's annotations to hijack other addresses; replumb goes by the reserved " +
				"addresses (kubectl get ipaddresses -l replumb.dev/role=hold) and its backups",
			Fix: "ask who wrote it; remove the annotations and labels of replumb.dev from the Service, or the Service that has the name of " +
				"another's bridge",
		},
		{
			Code: "RP1015", Severity: findings.Blocking, Run: checkLeftovers,
			Claim: "the cluster is clean of other migrations",
			Why:   "bridges, reserved addresses and admission policies of another migration are still in use by it, or keep objects from being changed",
			Fix: "finish or roll back the other migration (replumb status lists them); if its Migration is gone, remove by hand what carries " +
				"its name in the label replumb.dev/migration",
		},
	}
}

// checkVersion goes by what there is: API servers make the default ServiceCIDR once they use any.
func checkVersion(in Input) []findings.Result {
	if len(in.Snapshot.ServiceCIDRs) == 0 {
		return []findings.Result{findings.Failed("", "the API server is %s and has none", in.Snapshot.Version.GitVersion)}
	}
	return nil
}

func checkRights(in Input) []findings.Result { return migration.Denied(in.Live.Access) }

func checkNodesReady(in Input) []findings.Result { return migration.NotReady(in.Snapshot.Nodes) }

func checkDomain(in Input) []findings.Result {
	if !in.toldByKubelets() {
		return findings.Skip("no kubelet told its domain (RP1007)")
	}
	var out []findings.Result
	for _, node := range sortedKeys(in.Snapshot.Kubelets) {
		a := in.Snapshot.Kubelets[node]
		if a.Err == nil && a.Domain != in.spec().Domain {
			out = append(out,
				findings.Failed("Node "+node, "the kubelet of node %s uses %s, the Migration says %s", node, a.Domain, in.spec().Domain))
		}
	}
	return out
}

func checkDomainKnown(in Input) []findings.Result {
	if len(in.Snapshot.Kubelets) == 0 {
		return findings.Skip("no kubelet was asked")
	}
	var out []findings.Result
	for _, node := range sortedKeys(in.Snapshot.Kubelets) {
		if err := in.Snapshot.Kubelets[node].Err; err != nil {
			out = append(out, findings.NotKnown("Node "+node, "the kubelet of node %s did not say: %v", node, err))
		}
	}
	return out
}

func (in Input) toldByKubelets() bool {
	for _, a := range in.Snapshot.Kubelets {
		if a.Err == nil {
			return true
		}
	}
	return false
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

func checkBarrier(in Input) []findings.Result {
	if !in.bridging() {
		return findings.Skip(noMoves)
	}
	if in.spec().Barrier == v1alpha1.BarrierWait {
		return []findings.Result{
			findings.Failed(
				"",
				"barrier mode Wait only lets %s pass; a node that is slower than that loses requests",
				in.spec().BarrierWait,
			),
		}
	}
	return nil
}

func checkNames(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.spec().To {
		name := ranges.RangeName(in.spec(), i)
		for _, c := range in.Snapshot.ServiceCIDRs {
			if c.Name == name && c.Labels[v1alpha1.LabelMigration] != in.spec().Name && !isExactly(c.Spec.CIDRs, in.spec().To[i]) {
				out = append(out, findings.Failed("ServiceCIDR "+name, "servicecidr %s exists and is not of this migration", name))
			}
		}
	}
	return out
}

func isExactly(cidrs []string, p netip.Prefix) bool {
	return len(cidrs) == 1 && cidrs[0] == p.String()
}

func checkOtherMigration(in Input) []findings.Result {
	return failedFor(in.Inventory.Stays, services.Foreign)
}

func checkClaims(in Input) []findings.Result {
	var out []findings.Result
	for _, c := range in.Inventory.Unverified {
		key := client.ObjectKeyFromObject(c.Service).String()
		out = append(out, findings.Failed("Service "+key, "service %s %s", key, c.Text))
	}
	slices.SortStableFunc(out, func(a, b findings.Result) int { return strings.Compare(a.Object, b.Object) })
	return out
}

// checkLeftovers looks for what only a migration under way has; ranges of one that is over stay.
func checkLeftovers(in Input) []findings.Result {
	out := in.unread("migrations", "validatingadmissionpolicies")
	for _, m := range in.Found().Migrations {
		if phase := m.Status.Phase; phase != "" && !phase.Over() && m.Name != in.spec().Name {
			out = append(out, findings.Failed("Migration "+m.Name, "migration %s is under way (%s)", m.Name, phase))
		}
	}
	out = append(out, in.leftObjects()...)
	for _, p := range in.Found().Policies {
		if p.Migration != in.spec().Name {
			out = append(out, findings.Failed("ValidatingAdmissionPolicy "+p.Name,
				"validatingadmissionpolicy %s is of migration %s", p.Name, p.Migration))
		}
	}
	return out
}

func (in Input) leftObjects() (out []findings.Result) {
	other := func(labels map[string]string) (string, bool) {
		name := labels[v1alpha1.LabelMigration]
		return name, labels[v1alpha1.LabelRole] != "" && name != "" && name != in.spec().Name
	}
	held := services.ReservationsOf(in.Snapshot)
	for i := range in.Snapshot.Services {
		svc := &in.Snapshot.Services[i]
		key := client.ObjectKeyFromObject(svc)
		if name, yes := other(svc.Labels); yes && (services.IsOwn(svc) || held[key] != nil) {
			out = append(out,
				findings.Failed("Service "+key.String(), "service %s is a %s of migration %s", key, svc.Labels[v1alpha1.LabelRole], name))
		}
	}
	for i := range in.Snapshot.IPAddresses {
		ip := &in.Snapshot.IPAddresses[i]
		if name, yes := other(ip.Labels); yes {
			out = append(out, findings.Failed("IPAddress "+ip.Name, "ipaddress %s is reserved for migration %s", ip.Name, name))
		}
	}
	return out
}
