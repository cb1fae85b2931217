package podcidr

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/check"
	"github.com/replumb/replumb/internal/cluster"
	"github.com/replumb/replumb/internal/rollout"
)

// Input is what the checks look at.
type Input struct {
	Survey   *Survey
	Snapshot *cluster.Snapshot
}

// Checks are the checks of this migration, in the order in which they are shown.
func Checks() []check.Check[Input] {
	return slices.Concat(
		check.Group("Cluster", clusterChecks()...),
		check.Group("Ranges", rangeChecks()...),
		check.Group("Pools", poolChecks()...),
		check.Group("Nodes", nodeChecks()...),
		check.Group("kube-proxy", proxyChecks()...),
		check.Group("Workloads", workloadChecks()...),
	)
}

func clusterChecks() []check.Check[Input] {
	return []check.Check[Input]{
		{
			Code: "RP2001", Severity: check.Blocking, Run: checkRights,
			Claim: "the user has every right the migration needs",
			Why:   "a migration that is refused a write half way has to wait for somebody to grant it",
			Fix:   "grant the rights in deploy/rbac.yaml",
		},
		{
			Code: "RP2002", Severity: check.Blocking, Run: checkDatastore,
			Claim: "Calico's datastore is ready",
			Why:   "while it is locked, no pod gets an address: every pod that is restarted would stay without",
			Fix:   "finish what locked it (an upgrade, calicoctl datastore migrate), or unlock it: calicoctl datastore migrate unlock",
		},
		{
			Code: "RP2003", Severity: check.Blocking, Run: checkNodesReady,
			Claim: "every node is ready",
			Why:   "pods of a node that is not ready keep their old addresses, and a target cannot be tried out there",
			Fix:   "mend the node, or drain and delete it",
		},
	}
}

func rangeChecks() []check.Check[Input] {
	return []check.Check[Input]{
		{
			Code: "RP2101", Severity: check.Blocking, Run: checkOverlaps,
			Claim: "no target overlaps another range of the cluster",
			Why:   "an address that two things have answers for one of them only",
			Fix:   "choose another target",
		},
		{
			Code: "RP2102", Severity: check.Blocking, Run: checkReserved,
			Claim: "no target has loopback, link-local, multicast or reserved addresses",
			Why:   "hosts do not route such addresses, or give them a meaning of their own",
			Fix:   "choose a private range, such as one in 10.0.0.0/8, 172.16.0.0/12 or 192.168.0.0/16",
		},
		{
			Code: "RP2103", Severity: check.Blocking, Run: checkCapacity,
			Claim: "each target has blocks for every node and addresses for every pod",
			Why:   "a node that finds no block left borrows single addresses of others, or gives pods none at all",
			Fix:   "choose a wider target, or smaller blocks in spec.podCIDR.blockSize",
		},
	}
}

func poolChecks() []check.Check[Input] {
	return []check.Check[Input]{
		{
			Code: "RP2201", Severity: check.Blocking, Run: checkOldPools,
			Claim: "every range in from is that of a pool for pods",
			Why:   "there is nothing to take over from otherwise",
			Fix:   "name ranges of pools: kubectl get ippools.crd.projectcalico.org",
		},
		{
			Code: "RP2202", Severity: check.Blocking, Run: checkNewPools,
			Claim: "a pool that already has a target's range gives addresses to pods",
			Why:   "pods that find no pool stay without an address",
			Fix:   "enable it and allow Workload in allowedUses, or delete it and let the migration make one",
		},
		{
			Code: "RP2203", Severity: check.Blocking, Run: checkPins,
			Claim: "nothing that stays pins pods to a pool that goes",
			Why:   "a pod that asks for a disabled pool gets no address, and does not start",
			Fix:   "take the annotation out, or name the target's pool in it, before pods are restarted",
		},
	}
}

func proxyChecks() []check.Check[Input] {
	return []check.Check[Input]{{
		Code: "RP2301", Severity: check.Blocking, Run: checkProxyRange,
		Claim: "kube-proxy takes addresses of the targets for pods",
		Why: "it translates the source of what it does not take for a pod when it calls a Service: policies then see the node's address " +
			"and refuse, and services see no clients (projectcalico/calico#10907)",
		Fix: "set clusterCIDR in kube-proxy's configuration to ranges that cover old and new pods, such as \"OLD,NEW\" in one family where " +
			"one range holds both, or use detectLocalMode: InterfaceNamePrefix with pod.interfaceNamePrefix cali; then restart kube-proxy on " +
			"every node: kubectl -n kube-system rollout restart daemonset kube-proxy",
	}}
}

func workloadChecks() []check.Check[Input] {
	return []check.Check[Input]{
		{
			Code: "RP2401", Severity: check.Blocking, Run: checkBudgets,
			Claim: "no PodDisruptionBudget over pods that have to be restarted forbids every disruption",
			Why:   "the migration would wait for it for ever",
			Fix:   "let it allow one pod to go (maxUnavailable: 1, or more replicas than minAvailable) for the time of the migration",
		},
		{
			Code: "RP2402", Severity: check.Warning, Run: checkSingles,
			Claim: "no workload that is restarted stands still meanwhile",
			Why:   "a workload with a single pod that ends before the next one is ready answers nobody in between",
			Fix: "give it a second pod for the time of the migration (name Deployments in spec.podCIDR.prepare.deployments), or a strategy " +
				"that starts the new pod first",
		},
		{
			Code: "RP2403", Severity: check.Warning, Run: checkLeft,
			Claim: "every pod with an old address can be restarted",
			Why:   "finish waits until no pod has an old address",
			Fix:   "restart them yourself after apply, or set spec.podCIDR.roll.barePods: Evict, which ends pods without an owner for good",
		},
		{
			Code: "RP2404", Severity: check.Warning, Run: checkUnready,
			Claim: "every workload that is restarted is complete now",
			Why:   "a workload that is in trouble before is not mended by a restart, and stops the migration",
			Fix:   "mend it first, or scale it to zero",
		},
		{
			Code: "RP2405", Severity: check.Warning, Run: checkReferences,
			Claim: "no old range is written down",
			Why:   "a NetworkPolicy, configuration or firewall that names the range of pods treats pods with new addresses as strangers",
			Fix:   "add the target beside the old range before apply; take the old one out after finish",
		},
	}
}

func checkRights(in Input) []check.Result {
	var out []check.Result
	for _, a := range in.Snapshot.Access {
		if !a.Allowed {
			out = append(out, check.Failed("", "the user may not %s", a.Right))
		}
	}
	return out
}

func checkDatastore(in Input) []check.Result {
	if in.Survey.Calico.Ready {
		return nil
	}
	return []check.Result{check.Failed("ClusterInformation default", "Calico's datastore is locked (datastoreReady: false)")}
}

func checkNodesReady(in Input) []check.Result {
	var out []check.Result
	for i := range in.Survey.Nodes {
		if n := &in.Survey.Nodes[i]; !cluster.NodeReady(n) {
			out = append(out, check.Failed("Node "+n.Name, "node %s is not ready", n.Name))
		}
	}
	return out
}

func checkOverlaps(in Input) []check.Result {
	var out []check.Result
	against := func(object, what string, p netip.Prefix) {
		for _, to := range in.Survey.Spec.To {
			if to.Overlaps(p) {
				out = append(out, check.Failed(object, "target %s overlaps %s %s", to, what, p))
			}
		}
	}
	for i := range in.Survey.Calico.Pools {
		if p := &in.Survey.Calico.Pools[i]; !slices.Contains(in.Survey.Spec.To, p.CIDR) {
			against("IPPool "+p.Name, "pool "+p.Name+" of", p.CIDR)
		}
	}
	for i := range in.Snapshot.ServiceCIDRs {
		c := &in.Snapshot.ServiceCIDRs[i]
		for _, text := range c.Spec.CIDRs {
			if p, err := netip.ParsePrefix(text); err == nil {
				against("ServiceCIDR "+c.Name, "the Service range", p)
			}
		}
	}
	for i := range in.Survey.Nodes {
		n := &in.Survey.Nodes[i]
		for _, a := range n.Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				against("Node "+n.Name, "the address of node "+n.Name+",", netip.PrefixFrom(ip, ip.BitLen()))
			}
		}
	}
	for _, p := range in.Survey.Spec.Networks {
		against("", "network", p)
	}
	return out
}

func checkReserved(in Input) []check.Result {
	var out []check.Result
	for _, text := range []string{"0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"} {
		for _, to := range in.Survey.Spec.To {
			if to.Overlaps(netip.MustParsePrefix(text)) {
				out = append(out, check.Failed("", "target %s overlaps %s", to, text))
			}
		}
	}
	return out
}

// checkCapacity counts blocks as nodes take them: one each to begin with, and as many as its pods need.
func checkCapacity(in Input) []check.Result {
	var out []check.Result
	for i := range in.Survey.Moves {
		m := &in.Survey.Moves[i]
		size := in.Survey.Spec.BlockSize
		if size == 0 && m.Old != nil {
			size = m.Old.BlockSize()
		}
		if size < m.To.Bits() {
			out = append(out, check.Failed("", "target %s is smaller than one block of /%d", m.To, size))
			continue
		}
		perNode := map[string]int{}
		for _, pod := range in.Survey.PodsIn([]netip.Prefix{m.From, m.To}) {
			perNode[pod.Spec.NodeName]++
		}
		perBlock, blocks, needed := 1<<min(32-size, 20), 1<<min(size-m.To.Bits(), 20), 0
		for j := range in.Survey.Nodes {
			used := perNode[in.Survey.Nodes[j].Name] + 1 // the tunnel
			needed += max(1, (used+perBlock-1)/perBlock)
		}
		if needed > blocks {
			out = append(out, check.Failed("", "target %s has %d blocks of /%d, and the nodes need %d", m.To, blocks, size, needed))
		}
	}
	return out
}

func checkOldPools(in Input) []check.Result {
	var out []check.Result
	for i := range in.Survey.Moves {
		m := &in.Survey.Moves[i]
		switch {
		case m.Old == nil && m.New == nil:
			out = append(out, check.Failed("", "there is no pool of %s", m.From))
		case m.Old != nil && !m.Old.ForPods():
			out = append(out, check.Failed("IPPool "+m.Old.Name, "pool %s is not for pods (allowedUses)", m.Old.Name))
		}
	}
	return out
}

func checkNewPools(in Input) []check.Result {
	var out []check.Result
	for i := range in.Survey.Moves {
		if n := in.Survey.Moves[i].New; n != nil && (n.Spec.Disabled || !n.ForPods()) {
			out = append(out, check.Failed("IPPool "+n.Name, "pool %s of target %s gives no addresses to pods", n.Name, n.CIDR))
		}
	}
	return out
}

// checkPins looks at the templates of workloads, at namespaces, and at Calico's own configuration of the CNI plugin.
func checkPins(in Input) []check.Result {
	var out []check.Result
	goes := func(text string) bool {
		return slices.ContainsFunc(in.Survey.Moves, func(m Move) bool {
			return m.Old != nil && (strings.Contains(text, `"`+m.Old.Name+`"`) || strings.Contains(text, m.From.String()))
		})
	}
	pinned := func(object string, annotations map[string]string) {
		if text := annotations[poolsAnnotation]; text != "" && goes(text) {
			out = append(out, check.Failed(object, "%s pins pods to a pool that goes: %s", object, poolsAnnotation))
		}
		for _, key := range []string{"cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/ipAddrsNoIpam"} {
			if annotations[key] != "" {
				out = append(out, check.Failed(object, "%s gives pods addresses of its own: %s", object, key))
			}
		}
	}
	w := in.Survey.Workloads
	for i := range w.Deployments {
		pinned(object("Deployment", &w.Deployments[i]), w.Deployments[i].Spec.Template.Annotations)
	}
	for i := range w.StatefulSets {
		pinned(object("StatefulSet", &w.StatefulSets[i]), w.StatefulSets[i].Spec.Template.Annotations)
	}
	for i := range w.DaemonSets {
		pinned(object("DaemonSet", &w.DaemonSets[i]), w.DaemonSets[i].Spec.Template.Annotations)
	}
	for name, annotations := range in.Survey.Namespaces {
		pinned("Namespace "+name, annotations)
	}
	slices.SortFunc(out, func(a, b check.Result) int { return strings.Compare(a.Message, b.Message) })
	return out
}

func object(kind string, o client.Object) string {
	return kind + " " + o.GetNamespace() + "/" + o.GetName()
}

// checkProxyRange follows getLocalDetectors in k8s.io/kubernetes cmd/kube-proxy/app/server_linux.go.
func checkProxyRange(in Input) []check.Result {
	var out []check.Result
	if in.Snapshot.Inspection == nil {
		return []check.Result{check.NotKnown("", "nobody looked")}
	}
	for _, p := range in.Snapshot.Inspection.Proxies {
		switch {
		case p.Hidden || p.Problem != "":
			out = append(out, check.NotKnown(p.Object, "how kube-proxy is configured, %s does not tell", p.Object))
		case p.DetectLocalMode == "NodeCIDR" && in.Survey.OnNodes(): // it restarts by itself when its Node has another range
		case p.DetectLocalMode == "NodeCIDR":
			out = append(out, check.Failed(p.Object, "kube-proxy takes for pods what has an address of the node's podCIDR (detectLocalMode NodeCIDR)"))
		case p.DetectLocalMode == "" || p.DetectLocalMode == "ClusterCIDR":
			for _, to := range in.Survey.Spec.To {
				covered := slices.ContainsFunc(p.ClusterCIDRs, func(c netip.Prefix) bool { return c.Bits() <= to.Bits() && c.Contains(to.Addr()) })
				if !covered && len(p.ClusterCIDRs) > 0 {
					out = append(out, check.Failed(p.Object, "clusterCIDR %v in %s does not cover target %s", p.ClusterCIDRs, p.Object, to))
				}
			}
		}
	}
	return out
}

func checkBudgets(in Input) []check.Result {
	if in.Snapshot.Inspection == nil {
		return []check.Result{check.NotKnown("", "nobody looked")}
	}
	var out []check.Result
	for _, b := range in.Snapshot.Inspection.Stuck {
		out = append(out, check.Failed("PodDisruptionBudget "+b.Name, "poddisruptionbudget %s never lets a pod go: %s", b.Name, b.Rule))
	}
	return out
}

// plan of a restart at any time.
func (in Input) plan() fates { return in.Survey.fates(forth, time.Time{}) }

func checkSingles(in Input) []check.Result {
	var out []check.Result
	critical := in.Survey.Critical()
	for _, w := range in.plan().Restarts {
		scaled := slices.ContainsFunc(critical, func(k client.ObjectKey) bool {
			return w.Kind == rollout.KindDeployment && k.Namespace == w.Namespace && k.Name == w.Name
		})
		switch {
		case w.AllAtOnce:
			out = append(out, check.Failed(w.String(), "%s ends all its pods before it starts new ones (strategy Recreate)", w))
		case w.Kind == rollout.KindStatefulSet && len(w.Stale) == 1:
			out = append(out, check.Failed(w.String(), "%s has a single pod, which ends before the next one starts", w))
		case w.Kind == rollout.KindDeployment && len(w.Stale) == 1 && !scaled && !surges(in.Survey.Workloads, w):
			out = append(out, check.Failed(w.String(), "%s has a single pod, which may end before the next one is ready (maxSurge 0)", w))
		}
	}
	return out
}

func surges(state *rollout.State, w rollout.Workload) bool {
	for i := range state.Deployments {
		if d := &state.Deployments[i]; d.UID == w.UID {
			u := d.Spec.Strategy.RollingUpdate
			return u == nil || u.MaxSurge == nil || u.MaxSurge.String() != "0"
		}
	}
	return false
}

func checkLeft(in Input) []check.Result {
	var out []check.Result
	for _, r := range in.plan().Reported {
		out = append(out, check.Failed("Pod "+r.Pod.String(), "pod %s keeps its old address: %s", r.Pod, r.Reason))
	}
	return out
}

func checkUnready(in Input) []check.Result {
	var out []check.Result
	for i := range in.Survey.Workloads.Deployments {
		d := &in.Survey.Workloads.Deployments[i]
		if d.Status.AvailableReplicas < replicas(d) {
			out = append(out, check.Failed(object("Deployment", d), "deployment %s/%s has %d of %d pods available",
				d.Namespace, d.Name, d.Status.AvailableReplicas, replicas(d)))
		}
	}
	for i := range in.Survey.Workloads.StatefulSets {
		s := &in.Survey.Workloads.StatefulSets[i]
		if want := statefulReplicas(s); s.Status.AvailableReplicas < want {
			out = append(out, check.Failed(object("StatefulSet", s), "statefulset %s/%s has %d of %d pods available",
				s.Namespace, s.Name, s.Status.AvailableReplicas, want))
		}
	}
	return out
}

func statefulReplicas(s *appsv1.StatefulSet) int32 {
	if s.Spec.Replicas == nil {
		return 1
	}
	return *s.Spec.Replicas
}

func checkReferences(in Input) []check.Result {
	if in.Snapshot.Inspection == nil {
		return []check.Result{check.NotKnown("", "nobody looked")}
	}
	var out []check.Result
	for _, r := range in.Snapshot.Inspection.References {
		out = append(out, check.Failed(r.Object, "%s: %s names %s", r.Object, r.Field, r.Value))
	}
	return out
}
