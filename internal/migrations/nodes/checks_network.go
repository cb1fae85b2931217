package nodes

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/network/dnsrecords"
)

func ingressChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3301", Severity: findings.Warning, Run: checkClientAddresses,
			Claim: "Services work without the addresses of clients from outside",
			Why: "while a Service has externalTrafficPolicy Cluster, its pods see the address of a node instead of the client's: lists of allowed " +
				"addresses, rate limits and logs are about nodes then",
			Fix: "allow the addresses of all nodes meanwhile, use PROXY protocol, or set spec.nodes.ingress.mode: Leave and have pods on new " +
				"nodes before load balancers send traffic there",
		},
		{
			Code: "RP3302", Severity: findings.Blocking, Run: checkRecords,
			Claim: "every record in DNS can be moved",
			Why:   "clients of a name that points to a load balancer that is gone reach nothing",
			Fix: "resolve what the message says, or run replumb where the provider's key is; values that are neither in from nor in to are " +
				"not replumb's to change",
		},
		{
			Code: "RP3303", Severity: findings.Warning, Run: checkSigned,
			Claim: "updates of DNS are signed",
			Why:   "a server that takes updates without a signature takes them from anyone who can send it one",
			Fix:   "make a key with tsig-keygen, have the server ask for it, and name it under provider.rfc2136.tsigSecret or tsigKeyFile",
		},
		{
			Code: "RP3305", Severity: findings.Warning, Run: checkEnds,
			Claim: "the last targets of the API's names answer already",
			Why: "apply leads such a name there once all control planes have moved, and waits for it before it does; a certificate that is " +
				"not good for the name ends the run",
			Fix: "nothing, if the load balancer is to be made by then; else have it lead to API servers, and correct then of the record, " +
				"which may change while the migration runs",
		},
	}
}

func policyChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3304", Severity: findings.Blocking, Run: checkPolicies,
			Claim: "NetworkPolicies treat old and new nodes alike",
			Why: "packets of nodes to pods have their own address, and so have those that they forward for clients from outside: a policy that lets in the " +
				"network of old nodes alone refuses the new ones",
			Fix: "add the network of the new nodes beside that of the old ones, under the same ports, before apply; take the old one out after finish",
		},
	}
}

func controlPlaneChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP3401", Severity: findings.Blocking, Run: checkEtcd,
			Claim: "every member of etcd is healthy, and has a vote",
			Why:   "while one member is missing, changing another one can cost the quorum",
			Fix: "repair or remove the member; clear alarms when their reason is gone (etcdctl alarm disarm); run replumb where it reaches all " +
				"members",
		},
		{
			Code: "RP3402", Severity: findings.Warning, Run: checkQuorum,
			Claim: "etcd survives the loss of a member",
			Why:   "with one or two members, the API is down when one fails, during the migration as at any other time",
			Fix:   "run three or five control-plane nodes",
		},
		{
			Code: "RP3403", Severity: findings.Blocking, Run: checkStores,
			Claim: "every etcd on machines of the control plane moves with them",
			Why: "API servers say by their flags which etcds they have, and where; a member of one that nothing moves is lost with its machine, and " +
				"with most of them so is what they keep",
			Fix: "describe it as it is: spec.nodes.controlPlane.etcd.external for an etcd with machines of its own, etcdEvents for a second one " +
				"beside the first; move one for other resources by hand, or take it out of --etcd-servers-overrides",
		},
		{
			Code: "RP3404", Severity: findings.Warning, Run: checkStays,
			Claim: "every etcd is on machines that move",
			Why:   "an etcd elsewhere is not moved: the new API servers reach it from another network, where firewalls may not know them",
			Fix:   "let the new network reach its client port, and have new control planes use its endpoints and certificates",
		},
	}
}

func checkClientAddresses(in Input) []findings.Result {
	var out []findings.Result
	for _, svc := range in.Inventory.Ingress().Affected() {
		if local(svc) {
			name := client.ObjectKeyFromObject(svc).String()
			out = append(out,
				findings.Failed("Service "+name, "service %s has externalTrafficPolicy Local and becomes Cluster for a while", name))
		}
	}
	return out
}

func checkPolicies(in Input) []findings.Result {
	var out []findings.Result
	for _, r := range in.Inventory.uneven() {
		out = append(out, findings.Failed(r.Object, "%s: %s names %s", r.Object, r.Field, r.Value))
	}
	return out
}

func checkRecords(in Input) []findings.Result {
	if len(in.records()) == 0 {
		return findings.Skip("no record in DNS is named")
	}
	return ofRecords(in.RecordProblems)
}

func checkEnds(in Input) []findings.Result {
	if in.Inventory.Spec.ControlPlane == nil {
		return findings.Skip("control planes do not move (spec.nodes.controlPlane)")
	}
	return ofRecords(in.EndProblems)
}

// records are those of workers and of control planes.
func (in Input) records() []v1alpha1.RecordSpec {
	records := slices.Clone(in.Inventory.Spec.Records)
	if cp := in.Inventory.Spec.ControlPlane; cp != nil {
		records = append(records, cp.Records...)
	}
	return records
}

func ofRecords(problems map[string]error) []findings.Result {
	var out []findings.Result
	for _, name := range slices.Sorted(maps.Keys(problems)) {
		out = append(out, findings.Failed("Record "+name, "%v", problems[name]))
	}
	return out
}

func checkSigned(in Input) []findings.Result {
	records := in.records()
	if len(records) == 0 {
		return findings.Skip("no record in DNS is named")
	}
	var out []findings.Result
	for i := range records {
		if problem := dnsrecords.Unsigned(&records[i].Provider); problem != "" {
			out = append(out, findings.Failed("Record "+records[i].Name, "%s", problem))
		}
	}
	return out
}

// checkEtcd exempts members that are being replaced, when a run is taken up again.
func checkEtcd(in Input) []findings.Result {
	switch {
	case in.Inventory.Spec.ControlPlane == nil:
		return findings.Skip("control planes do not move (spec.nodes.controlPlane)")
	case in.EtcdProblem != nil:
		return []findings.Result{findings.Failed("", "%v", in.EtcdProblem)}
	}
	var exempt []string
	for _, c := range in.Inventory.ControlPlane().Old() {
		if c.Ended {
			exempt = append(exempt, c.Name)
		}
		if c.Successor != nil {
			exempt = append(exempt, c.Successor.Name, c.Successor.PeerURL)
		}
	}
	if problem := in.Inventory.Etcd.Problem(exempt...); problem != "" {
		return []findings.Result{findings.Failed("", "etcd: %s", problem)}
	}
	if problem := in.eventsProblem(); problem != "" {
		return []findings.Result{findings.Failed("", "events etcd: %s", problem)}
	}
	if len(in.Inventory.ControlPlane().Old()) > 0 {
		return nil
	}
	if in.Inventory.Spec.external() {
		return []findings.Result{findings.Failed("", "no Node of the control plane has an address in %v", in.Inventory.Spec.Old.CIDRs)}
	}
	return []findings.Result{findings.Failed("", "no member of etcd has a peer URL in %v", in.Inventory.Spec.Old.CIDRs)}
}

// eventsProblem says what is wrong with the second etcd; nothing, if all is well or none moves.
func (in Input) eventsProblem() string {
	switch {
	case in.EventsProblem != nil:
		return in.EventsProblem.Error()
	case in.Inventory.Events == nil:
		return ""
	}
	var exempt []string
	for _, c := range in.Inventory.ControlPlane().Old() {
		if c.Ended || c.Successor != nil {
			exempt = append(exempt, in.Inventory.ControlPlane().eventsInTransition(&c)...)
		}
	}
	return in.Inventory.Events.Problem(exempt...)
}

func (s *Inventory) stores() ([]apiserver.Stores, []netip.Addr) {
	all := apiserver.StoresOf(s.Pods)
	var hosts []netip.Addr
	for _, a := range all {
		hosts = append(hosts, a.Host)
	}
	return all, hosts
}

func checkStores(in Input) []findings.Result {
	cp := in.Inventory.Spec.ControlPlane
	if cp == nil {
		return findings.Skip("control planes do not move (spec.nodes.controlPlane)")
	}
	var out []findings.Result
	all, hosts := in.Inventory.stores()
	for i := range all {
		s := &all[i]
		beside := s.Beside(s.Main, hosts...)
		switch {
		case beside && cp.Etcd.External:
			out = append(
				out,
				findings.Failed("Pod "+s.Pod, "the API server of pod %s has its etcd beside it (%s), and etcd.external says that it "+
					"is elsewhere", s.Pod, strings.Join(s.Main, ", ")),
			)
		case !beside && !cp.Etcd.External:
			out = append(
				out,
				findings.Failed("Pod "+s.Pod, "the API server of pod %s has its etcd elsewhere (%s): write etcd.external: true",
					s.Pod, strings.Join(s.Main, ", ")),
			)
		}
		for _, resource := range s.Resources() {
			urls := s.Others[resource]
			switch {
			case !s.Beside(urls, hosts...):
			case resource != apiserver.Events:
				out = append(
					out,
					findings.Failed("Pod "+s.Pod, "the API server of pod %s has an etcd for %s beside it (%s), and only one for "+
						"events can be moved", s.Pod, resource, strings.Join(urls, ", ")),
				)
			case cp.EtcdEvents == nil:
				out = append(out, findings.Failed("Pod "+s.Pod, "the API server of pod %s has an etcd for events beside it (%s), and "+
					"controlPlane.etcdEvents does not say how its members are reached", s.Pod, strings.Join(urls, ", ")))
			}
		}
	}
	return out
}

func checkStays(in Input) []findings.Result {
	if in.Inventory.Spec.ControlPlane == nil {
		return findings.Skip("control planes do not move (spec.nodes.controlPlane)")
	}
	var out []findings.Result
	seen := map[string]bool{}
	note := func(of string, urls []string) {
		text := fmt.Sprintf("the etcd%s at %s stays where it is", of, strings.Join(urls, ", "))
		if !seen[text] {
			seen[text] = true
			out = append(out, findings.Failed("", "%s", text))
		}
	}
	all, hosts := in.Inventory.stores()
	for i := range all {
		s := &all[i]
		if !s.Beside(s.Main, hosts...) {
			note("", s.Main)
		}
		for _, resource := range s.Resources() {
			if urls := s.Others[resource]; !s.Beside(urls, hosts...) {
				note(" for "+resource, urls)
			}
		}
	}
	return out
}

func checkQuorum(in Input) []findings.Result {
	if in.Inventory.Etcd == nil {
		return findings.Skip("no members of etcd were asked")
	}
	if in.Inventory.ControlPlane().voters() >= 3 {
		return nil
	}
	return []findings.Result{findings.Failed("", "etcd has %d members", in.Inventory.ControlPlane().voters())}
}
