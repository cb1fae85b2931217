package conformance

// Network are the tests of the network that every cluster has to pass, and some more that call Services, as far as a lab of two nodes can run
// them: of IPv4 and without load balancer, several at a time.
func Network() Choice {
	c := Choice{Focus: []string{
		`\[sig-network\].*\[Conformance\]`,
		`\[sig-network\] Services should (allow pods to hairpin|be rejected when|be possible to connect to a service via ExternalIP)`,
		`\[sig-network\] Services should (work after the service has been recreated|be updated after adding or deleting ports)`,
		`\[sig-network\] Services should respect internalTrafficPolicy=Local`,
	}}
	for _, s := range skips() {
		c.Skip = append(c.Skip, s.tests)
	}
	return c
}

// skip are tests that are not run, and why.
type skip struct{ tests, because string }

func skips() []skip {
	return []skip{
		{`\[Serial\]`, "they need the cluster for themselves"},
		{`\[Disruptive\]`, "they break the cluster for others"},
		{`\[Slow\]`, "they take minutes each"},
		{`\[Provider:GCE\]`, "they ask for names of Google's cloud"},
		{`\[Feature:LoadBalancer\]`, "there is no cloud that would make any"},
		{`\[Feature:IPv6DualStack\]|\[Feature:Networking-IPv6\]`, "labs have IPv4 only"},
		{`\[Feature:SCTPConnectivity\]`, "it needs a kernel with the module sctp"},
		{`\[Feature:Networking-IPv4\]|\[Feature:Networking-DNS\]`, "there is no way to the Internet"},
		{`\[Feature:Networking-Performance\]|\[Feature:PerformanceDNS\]`, "they measure how fast, not whether"},
		{`\[Feature:Ingress\]`, "there is no controller for them"},
		{`\[Feature:KubeProxyDaemonSetMigration\]|\[Feature:KubeProxyNFAcct\]`, "kube-proxy is no pod, and the kernel may lack nfacct"},
		{`evicted pods`, "it waits for a kubelet to evict a pod, which has not been tried in a lab"},
		{
			`Netpol \[|Netpol NetworkPolicy`,
			"nine pods of each call each other in all pairs, which takes two processors minutes; TestCalico has policies",
		},
	}
}
