package pools

import (
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

func checkOldPools(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Pools.Moves {
		m := &in.Pools.Moves[i]
		switch {
		case m.Old == nil && m.New == nil:
			out = append(out, findings.Failed("", "there is no pool of %s", m.From))
		case m.Old != nil && !m.Old.ForPods():
			out = append(out, findings.Failed("IPPool "+m.Old.Name, "pool %s is not for pods (allowedUses)", m.Old.Name))
		}
	}
	return out
}

func checkNewPools(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Pools.Moves {
		if n := in.Pools.Moves[i].New; n != nil && (n.Spec.Disabled || !n.ForPods()) {
			out = append(out, findings.Failed("IPPool "+n.Name, "pool %s of target %s gives no addresses to pods", n.Name, n.CIDR))
		}
	}
	return out
}

// checkPins looks at pod templates, namespaces, and Calico's CNI configuration.
func checkPins(in Input) []findings.Result {
	var out []findings.Result
	goes := func(text string) bool {
		return slices.ContainsFunc(in.Pools.Moves, func(m PoolMove) bool {
			return m.Old != nil && (strings.Contains(text, `"`+m.Old.Name+`"`) || strings.Contains(text, m.From.String()))
		})
	}
	pinned := func(object string, annotations map[string]string) {
		if text := annotations[connectivity.PoolsAnnotation]; text != "" && goes(text) {
			out = append(out, findings.Failed(object, "%s pins pods to a pool that goes: %s", object, connectivity.PoolsAnnotation))
		}
		for _, key := range []string{"cni.projectcalico.org/ipAddrs", "cni.projectcalico.org/ipAddrsNoIpam"} {
			if annotations[key] != "" {
				out = append(out, findings.Failed(object, "%s gives pods addresses of its own: %s", object, key))
			}
		}
	}
	w := in.Inventory.Workloads
	for i := range w.Deployments {
		pinned(podmove.Object("Deployment", &w.Deployments[i]), w.Deployments[i].Spec.Template.Annotations)
	}
	for i := range w.StatefulSets {
		pinned(podmove.Object("StatefulSet", &w.StatefulSets[i]), w.StatefulSets[i].Spec.Template.Annotations)
	}
	for i := range w.DaemonSets {
		pinned(podmove.Object("DaemonSet", &w.DaemonSets[i]), w.DaemonSets[i].Spec.Template.Annotations)
	}
	for name, annotations := range in.Pools.Namespaces {
		pinned("Namespace "+name, annotations)
	}
	out = append(out, in.pinnedConfigs(goes)...)
	slices.SortFunc(out, func(a, b findings.Result) int { return strings.Compare(a.Message, b.Message) })
	return out
}

// pinnedConfigs are CNI configurations that name a pool that goes.
func (in Input) pinnedConfigs(goes func(text string) bool) []findings.Result {
	var out []findings.Result
	for name, data := range in.Inventory.Configs {
		for _, text := range data {
			if strings.Contains(text, "ipv4_pools") && goes(text) {
				what := "the CNI configuration in ConfigMap %s pins pods to a pool that goes: ipv4_pools"
				out = append(out, findings.Failed("ConfigMap "+name, what, name))
			}
		}
	}
	return out
}

func checkReservable(in Input) []findings.Result {
	if !in.Pools.KeepsTunnels() {
		return findings.Skip("no addresses of tunnels are to be kept")
	}
	if !in.Pools.Unreservable {
		return nil
	}
	return []findings.Result{findings.Failed("", "this Calico has no IPReservations")}
}

func checkLeft(in Input) []findings.Result {
	var out []findings.Result
	for _, r := range in.Fates.Reported {
		out = append(out, findings.Failed("Pod "+r.Pod.String(), "pod %s keeps its old address: %s", r.Pod, r.Reason))
	}
	return out
}

// checkControllerManager reads the command lines of controller managers that run as static pods.
func checkControllerManager(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Inventory.Workloads.Pods {
		pod := &in.Inventory.Workloads.Pods[i]
		for n := range pod.Spec.Containers {
			words := slices.Concat(pod.Spec.Containers[n].Command, pod.Spec.Containers[n].Args)
			if !slices.ContainsFunc(words, func(w string) bool { return path.Base(w) == "kube-controller-manager" }) ||
				!slices.ContainsFunc(words,
					func(w string) bool { return w == "--allocate-node-cidrs" || w == "--allocate-node-cidrs=true" }) {
				continue
			}
			for _, text := range clusterCIDRs(words) {
				p, err := netip.ParsePrefix(text)
				about := err == nil && slices.ContainsFunc(slices.Concat(in.Inventory.Spec.From, in.Inventory.Spec.To), p.Overlaps)
				if about {
					out = append(out, findings.Failed("Pod "+pod.Namespace+"/"+pod.Name,
						"pod %s/%s gives nodes ranges of %s (--allocate-node-cidrs, --cluster-cidr)", pod.Namespace, pod.Name, p))
				}
			}
		}
	}
	return out
}

func clusterCIDRs(words []string) []string {
	for i, w := range words {
		if value, ok := strings.CutPrefix(w, "--cluster-cidr="); ok {
			return strings.Split(value, ",")
		}
		if w == "--cluster-cidr" && i+1 < len(words) {
			return strings.Split(words[i+1], ",")
		}
	}
	return nil
}

// checkTunnels: Calico removes neighbours and routes of an old tunnel address before it adds new
// ones (felix/dataplane/linux/vxlan_mgr.go), and the kernel forgets what was masqueraded with it
// (masq_inet_event in net/netfilter/nf_nat_masquerade.c).
func checkTunnels(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Pools.Moves {
		old := in.Pools.Moves[i].Old
		if old == nil || old.Overlay() == "" {
			continue
		}
		if nodes := in.Inventory.TunnelsIn([]netip.Prefix{old.CIDR}); len(nodes) > 1 {
			out = append(out,
				findings.Failed("IPPool "+old.Name, "%s tunnels of %d nodes have addresses of %s", old.Overlay(), len(nodes), old.CIDR))
		}
	}
	return out
}

// checkTunnelsMoved says where Calico moves tunnels by itself.
func checkTunnelsMoved(in Input) []findings.Result {
	if in.Pools.MovesTunnels() {
		return nil
	}
	var out []findings.Result
	for _, r := range checkTunnels(in) {
		out = append(out, findings.Failed(r.Object, "Calico moves all tunnels at once: %s", r.Message))
	}
	return out
}
