package kubeproxy

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/keepers"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/daemonset"
	"github.com/replumb/replumb/internal/verify/lossguard"
)

// Input is what the checks look at.
type Input struct {
	Inventory *Inventory
	Access    []access.Answer
	// Image is what keeps rules on nodes, Agents what watches; empty for none.
	Image, Agents string
	AbsentSecrets []findings.Result
	// Others are all Migrations of the cluster.
	Others []v1alpha1.Migration
}

const notKnown = "it is not known how kube-proxy runs"

// unlessPods skips what is read from the objects of kube-proxy where there are none.
func unlessPods(s *Inventory) []findings.Result {
	if s.known() && s.own() == nil {
		return findings.Skip("kube-proxy is a program of nodes, which no object shows")
	}
	return findings.Skip(notKnown)
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []findings.Check[Input] {
	return slices.Concat(
		findings.Group("Cluster", clusterChecks()...),
		findings.Group("kube-proxy", proxyChecks()...),
		findings.Group("Services", serviceChecks()...),
		findings.Group("Agents", lossguard.Checks("RP7301", "RP7302", "", func(in Input) (string, []corev1.Node) {
			return in.Agents, in.Inventory.Nodes
		})...),
	)
}

func clusterChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP7001", Severity: findings.Blocking, Run: func(in Input) []findings.Result { return migration.Denied(in.Access) },
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way stops there until the right is granted",
			Fix:   "have an administrator bind the roles: replumb rbac -f FILE --user NAME | kubectl apply -f -",
		},
		{
			Code: "RP7002", Severity: findings.Blocking, Run: func(in Input) []findings.Result { return migration.NotReady(in.Inventory.Nodes) },
			Claim: "every node is ready",
			Why:   "a node that does not answer keeps its kube-proxy and its rules, and the migration waits for it",
			Fix:   "repair the node, or delete it",
		},
		{
			Code: "RP7003", Severity: findings.Blocking, Run: checkOthers,
			Claim: "this is the only migration under way",
			Why:   "another migration proves its moves by the rules that this one changes",
			Fix:   "finish it or roll it back first",
		},
		pull.Check("RP7004", func(in Input) []findings.Result { return in.AbsentSecrets }),
	}
}

func proxyChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP7101", Severity: findings.Blocking, Run: checkOwn,
			Claim: "kube-proxy runs in one DaemonSet whose mode can be read, or spec.kubeProxy.program is set",
			Why: "nodes are changed one by one: by a second DaemonSet like it, or by the owner of a kube-proxy that is a unit of systemd, or part of k3s " +
				"or RKE2, who restarts it while a copy of its rules leads",
			Fix: "see kubectl get daemonsets -A; where kube-proxy is a program of nodes, set spec.kubeProxy.program: {}, to be asked on each node, or " +
				"spec.kubeProxy.program.restart (docs/runbooks/kube-proxy.md#kube-proxy-as-a-program-k3s-and-rke2)",
		},
		{
			Code: "RP7102", Severity: findings.Blocking, Run: checkMode,
			Claim: "kube-proxy has a mode that replumb leads away from",
			Why: "mode ipvs keeps Services in tables of the kernel's own, which kube-proxy in mode nftables empties when it starts: new connections are " +
				"lost until it has written rules, and open ones for good",
			Fix: "set spec.kubeProxy.mode: iptables, and finish that; another Migration leads from there to nftables " +
				"(docs/runbooks/kube-proxy.md#out-of-ipvs)",
		},
		{
			Code: "RP7103", Severity: findings.Blocking, Run: checkHeld,
			Claim: "kube-proxy's objects stay as replumb leaves them",
			Why:   "what brings the DaemonSet or its configuration back starts kube-proxy of the former mode beside the new one, and each removes the rules of the other",
			Fix:   "change the mode where they are kept, and have them paused until the migration is finished",
		},
		{
			Code: "RP7104", Severity: findings.Blocking, Run: checkVersion,
			Claim: "kube-proxy and the kernel of every node have the mode",
			Why:   "mode nftables is stable from Kubernetes 1.33 on, on by default from 1.31 on, and takes Linux 5.13 (KEP-3866)",
			Fix:   "upgrade Kubernetes, or the nodes",
		},
		{
			Code: "RP7105", Severity: findings.Warning, Run: checkRestarts,
			Claim: "pods of kube-proxy are replaced one by one",
			Why:   "its DaemonSet gets another affinity before and after nodes are changed, and replaces its pods each time: rules stay, and for moments are not kept up",
			Fix:   "set maxUnavailable of its update strategy to 1, or plan for so many nodes at once",
		},
	}
}

func serviceChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP7201", Severity: findings.Warning, Run: checkAffinity,
			Claim: "every Service may lead its clients to another pod",
			Why:   "sessionAffinity ClientIP is kept by each mode for itself: on a node that is changed, clients may come to another pod once",
			Fix:   "change nodes when sessions may begin again",
		},
		{
			Code: "RP7202", Severity: findings.Warning, Run: checkNodePorts,
			Claim: "node ports are called at the first address of nodes",
			Why: "mode nftables answers at node ports on the addresses of nodes alone, not on 127.0.0.1 and, without nodePortAddresses, not on further " +
				"addresses (Migrating from iptables mode to nftables, in the documentation of Services)",
			Fix: "set nodePortAddresses in the configuration of kube-proxy to the ranges that are called, and lead what calls localhost elsewhere",
		},
		{
			Code: "RP7203", Severity: findings.Warning, Run: checkRanges,
			Claim: "every Service may lose connections at its balancer's address while nodes leave mode ipvs",
			Why: "mode iptables drops what comes for such an address and was not translated, and so what IPVS leads: on a node that is changed, open " +
				"connections through that address end, and new ones may fail for as long as rules are written",
			Fix: "change nodes when such connections may end (spec.windows), or drain the node from the balancer before its turn (spec.hooks)",
		},
	}
}

func checkOthers(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Others {
		m := &in.Others[i]
		under := m.Status.Phase == v1alpha1.PhaseApplying || m.Status.Phase == v1alpha1.PhaseRollingBack ||
			m.Status.Phase == v1alpha1.PhaseFinishing
		if m.Name != in.Inventory.Spec.Name && under {
			out = append(out, findings.Failed("Migration "+m.Name, "migration %s is %s", m.Name, m.Status.Phase))
		}
	}
	return out
}

func checkOwn(in Input) []findings.Result {
	switch s := in.Inventory; {
	case s.Spec.Program != nil && len(s.Own) > 0:
		return []findings.Result{findings.Failed(daemonset.Name(&s.Own[0]), "%s runs kube-proxy, and spec.kubeProxy.program is set", daemonset.Name(&s.Own[0]))}
	case s.Spec.Program != nil:
		return nil
	case len(s.Own) == 0:
		return []findings.Result{findings.Failed("", "no DaemonSet runs kube-proxy, and spec.kubeProxy.program is not set")}
	case len(s.Own) > 1:
		return []findings.Result{findings.Failed(daemonset.Name(&s.Own[1]), "%s and %s both run kube-proxy", daemonset.Name(&s.Own[0]), daemonset.Name(&s.Own[1]))}
	case s.Problem != nil:
		return []findings.Result{findings.Failed(daemonset.Name(s.own()), "%s: %v", daemonset.Name(s.own()), s.Problem)}
	}
	return nil
}

func checkMode(in Input) []findings.Result {
	s := in.Inventory
	from := s.from()
	leads := from == v1alpha1.KubeProxyIPTables || from == v1alpha1.KubeProxyNFTables ||
		from == v1alpha1.KubeProxyIPVS && s.Spec.Mode == v1alpha1.KubeProxyIPTables
	switch {
	case !s.known(), s.own() == nil && s.Spec.Program.From == "":
		return unlessPods(s)
	case leads:
		return nil
	case s.own() == nil:
		return []findings.Result{findings.Failed("", "kube-proxy has mode %s, and is to have %s", from, s.Spec.Mode)}
	}
	return []findings.Result{findings.Failed(daemonset.Name(s.own()), "%s has mode %s, and is to have %s", daemonset.Name(s.own()), from, s.Spec.Mode)}
}

// checkRanges names the Services that mode iptables refuses at the addresses of their balancers
// until it leads there itself.
func checkRanges(in Input) []findings.Result {
	s := in.Inventory
	if s.from() != v1alpha1.KubeProxyIPVS {
		return findings.Skip("kube-proxy does not leave mode ipvs")
	}
	var out []findings.Result
	for i := range s.Services {
		svc := &s.Services[i]
		addresses := addressesOf(svc)
		if len(svc.Spec.LoadBalancerSourceRanges) > 0 && len(addresses) > 0 {
			name := svc.Namespace + "/" + svc.Name
			out = append(out, findings.Failed("Service "+name, "service %s has loadBalancerSourceRanges, and is called at %s", name, strings.Join(addresses, ", ")))
		}
	}
	return out
}

// addressesOf are those of a balancer that kube-proxy leads from.
func addressesOf(svc *corev1.Service) (out []string) {
	for _, in := range svc.Status.LoadBalancer.Ingress {
		if in.IP != "" && (in.IPMode == nil || *in.IPMode == corev1.LoadBalancerIPModeVIP) {
			out = append(out, in.IP)
		}
	}
	return out
}

func checkHeld(in Input) []findings.Result {
	s := in.Inventory
	if !s.known() || s.own() == nil {
		return unlessPods(s)
	}
	var out []findings.Result
	if by, comesBack := keepers.HeldBy(s.own()); comesBack {
		out = append(out, findings.Failed(daemonset.Name(s.own()), "%s is held by %s", daemonset.Name(s.own()), by))
	}
	if s.Config != nil {
		if by, comesBack := keepers.HeldBy(s.Config); comesBack {
			name := fmt.Sprintf("ConfigMap %s/%s", s.Config.Namespace, s.Config.Name)
			out = append(out, findings.Failed(name, "%s is held by %s", name, by))
		}
	}
	return out
}

// The first versions with mode nftables on by default.
const (
	minKubernetes  = 31
	minKernelMajor = 5
	minKernelMinor = 13
)

func checkVersion(in Input) []findings.Result {
	s := in.Inventory
	if !s.known() {
		return findings.Skip(notKnown)
	}
	if s.Spec.Mode != v1alpha1.KubeProxyNFTables {
		return findings.Skip("every version has mode %s", s.Spec.Mode)
	}
	var out []findings.Result
	if own := s.own(); own != nil {
		image := proxyIn(&own.Spec.Template.Spec).Image
		name, _, _ := strings.Cut(image, "@")
		if _, tag, ok := strings.Cut(name[strings.LastIndex(name, "/")+1:], ":"); ok && tooOld(tag) {
			out = append(out, findings.Failed(daemonset.Name(own), "%s runs %s", daemonset.Name(own), image))
		}
	}
	for _, n := range s.concerned() {
		if kubelet := n.Status.NodeInfo.KubeletVersion; s.own() == nil && tooOld(kubelet) { // a program's own version is in no object
			out = append(out, findings.Failed("Node "+n.Name, "node %s runs Kubernetes %s", n.Name, kubelet))
		}
		kernel := n.Status.NodeInfo.KernelVersion
		major, minor, ok := inventory.Minor(kernel)
		if ok && (major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor) {
			out = append(out, findings.Failed("Node "+n.Name, "node %s runs Linux %s", n.Name, kernel))
		}
	}
	return out
}

// tooOld reports whether a version of Kubernetes is known to lack mode nftables.
func tooOld(version string) bool {
	major, minor, ok := inventory.Minor(version)
	return ok && major == 1 && minor < minKubernetes
}

func checkRestarts(in Input) []findings.Result {
	s := in.Inventory
	if !s.known() || s.own() == nil {
		return unlessPods(s)
	}
	u := s.own().Spec.UpdateStrategy.RollingUpdate
	if u != nil && u.MaxUnavailable != nil && u.MaxUnavailable.String() != "1" {
		return []findings.Result{findings.Failed(daemonset.Name(s.own()), "%s replaces %s of its pods at once", daemonset.Name(s.own()), u.MaxUnavailable)}
	}
	return nil
}

func checkAffinity(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Inventory.Services {
		svc := &in.Inventory.Services[i]
		if svc.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
			name := svc.Namespace + "/" + svc.Name
			out = append(out, findings.Failed("Service "+name, "service %s remembers its clients", name))
		}
	}
	return out
}

// namesNodePorts reports whether the configuration says at which addresses node ports answer.
func (s *Inventory) namesNodePorts() bool {
	if s.Config == nil {
		return false
	}
	c, err := parseConfig(s.Config.Data[s.At.key])
	return err == nil && len(c.NodePortAddresses) > 0
}

func checkNodePorts(in Input) []findings.Result {
	s := in.Inventory
	switch {
	case !s.known():
		return findings.Skip(notKnown)
	case s.Spec.Mode != v1alpha1.KubeProxyNFTables:
		return findings.Skip("mode %s answers on all addresses", s.Spec.Mode)
	case s.namesNodePorts():
		return nil
	}
	for i := range s.Services {
		for _, port := range s.Services[i].Spec.Ports {
			if port.NodePort != 0 {
				name := s.Services[i].Namespace + "/" + s.Services[i].Name
				return []findings.Result{findings.Failed("Service "+name, "service %s has node port %d, and nodePortAddresses is not set", name, port.NodePort)}
			}
		}
	}
	return nil
}
