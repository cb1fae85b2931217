package switchover

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/keepers"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/cni/manifests"
	"github.com/replumb/replumb/internal/network/daemonset"
)

func checkRights(in Input) []findings.Result { return migration.Denied(in.Access) }

// checkOthers allows an active mirror: it serves the cluster's clients, which makes this migration
// possible.
func checkOthers(in Input) []findings.Result {
	var out []findings.Result
	for i := range in.Others {
		m := &in.Others[i]
		under := m.Status.Phase == v1alpha1.PhaseApplying || m.Status.Phase == v1alpha1.PhaseRollingBack ||
			m.Status.Phase == v1alpha1.PhaseFinishing
		if m.Name != in.Inventory.Spec.Name && under && m.Spec.Mirror == nil {
			out = append(out, findings.Failed("Migration "+m.Name, "migration %s is %s", m.Name, m.Status.Phase))
		}
	}
	return out
}

// checkNodes asks only before anything is removed: afterwards nodes are not ready until the new
// network is there.
func checkNodes(in Input) []findings.Result {
	if in.Inventory.Begun() {
		return findings.Skip("nodes have lost the old network by now")
	}
	return migration.NotReady(in.Inventory.Nodes)
}

// Covers reports whether a range contains all of another.
func Covers(all, one netip.Prefix) bool { return all.Bits() <= one.Bits() && all.Contains(one.Addr()) }

func checkFrom(in Input) []findings.Result {
	s := in.Inventory
	if s.Begun() { // it may be gone by now
		return findings.Skip("the old network is going by now")
	}
	var found []string
	for _, n := range s.Networks {
		found = append(found, fmt.Sprintf("%s (DaemonSet %s/%s)", n.Name, n.Set.Namespace, n.Set.Name))
	}
	switch {
	case s.From() == v1alpha1.HostLocal && len(found) == 0:
		return checkHostLocal(s)
	case len(found) == 0 && len(s.Unknown) > 0:
		return []findings.Result{findings.Failed("", "no DaemonSet is a network that replumb knows: %s", strings.Join(s.Unknown, ", "))}
	case len(found) == 0:
		return []findings.Result{findings.Failed("", "no DaemonSet is a network that replumb knows")}
	case len(found) > 1:
		return []findings.Result{findings.Failed("", "there is more than one network: %s", strings.Join(found, ", "))}
	case s.Networks[0].Name != s.From():
		return []findings.Result{findings.Failed("", "spec.cni.from is %s, and the cluster has %s", s.From(), found[0])}
	}
	return nil
}

// Overlay reports whether a network can be on either side.
func Overlay(n v1alpha1.CNIName) bool { return n == v1alpha1.Flannel || n == v1alpha1.Calico }

func checkPair(in Input) []findings.Result {
	from := in.Inventory.From()
	if from == "" {
		return findings.Skip("the old network is not known (RP5101)")
	}
	if why := in.Strategy.Unsupported(from, in.Inventory.Spec.To); why != "" {
		return []findings.Result{findings.Failed("", "%s", why)}
	}
	return nil
}

// Unsupported says that no strategy replaces one network by another.
func Unsupported(from, to v1alpha1.CNIName) string {
	why := ""
	if from == v1alpha1.Canal {
		why = ": Canal is Calico's policies over flannel's network, and what it leaves on nodes is of both"
	}
	return fmt.Sprintf("from %s to %s is an unsupported combination%s", from, to, why)
}

// keepers calls take for every object of the old network that something holds on to.
func (s *Inventory) keepers(take func(object, by string, comesBack bool)) {
	for _, o := range s.Old {
		if by, comesBack := keepers.HeldBy(o); by != "" {
			take(manifests.KeyOf(o).String(), by, comesBack)
		}
	}
}

func checkKeepers(in Input) []findings.Result {
	if in.Inventory.Begun() && len(in.Inventory.Old) == 0 {
		return findings.Skip("the old network is gone")
	}
	var out []findings.Result
	in.Inventory.keepers(func(object, by string, comesBack bool) {
		if comesBack {
			out = append(out, findings.Failed(object, "%s is held by %s", object, by))
		}
	})
	for _, o := range in.Inventory.Operators {
		out = append(out, findings.Failed(o, "%s keeps a network as it is", o))
	}
	return out
}

func checkHelm(in Input) []findings.Result {
	var out []findings.Result
	in.Inventory.keepers(func(object, by string, comesBack bool) {
		if !comesBack && len(out) == 0 { // one release is all of it
			out = append(out, findings.Failed(object, "%s is held by %s", object, by))
		}
	})
	return out
}

func checkManifests(in Input) []findings.Result {
	m, to := in.Inventory.Manifests, in.Inventory.Spec.To
	switch {
	case in.Inventory.ManifestsProblem != nil:
		return []findings.Result{findings.Failed("", "%v", in.Inventory.ManifestsProblem)}
	case m == nil:
		return []findings.Result{findings.NotKnown("", "no one has read them")}
	case len(m.Networks) == 0:
		return []findings.Result{findings.Failed("", "no DaemonSet of the manifests is a network that replumb knows")}
	case len(m.Networks) > 1:
		return []findings.Result{findings.Failed("", "the manifests hold more than one network: %v", m.Networks)}
	case m.Networks[0] != to:
		return []findings.Result{findings.Failed("", "the manifests are those of %s, and spec.cni.to is %s", m.Networks[0], to)}
	}
	var out []findings.Result
	for _, o := range m.Objects {
		if strings.HasPrefix(o.GetAPIVersion(), "operator.tigera.io/") {
			out = append(out, findings.Failed(manifests.KeyOf(o).String(), "%s is for an operator, which replumb does not follow", manifests.KeyOf(o)))
		}
	}
	return out
}

// NoManifests is why checks of the new network are skipped.
const NoManifests = "the manifests were not read (RP5105)"

func checkReach(in Input) []findings.Result {
	if in.Inventory.Manifests == nil {
		return findings.Skip(NoManifests)
	}
	set := in.Inventory.Manifests.DaemonSet()
	if set == nil {
		return findings.Skip("the manifests have no DaemonSet of a network (RP5105)")
	}
	name := daemonset.Name(set)
	pod := &set.Spec.Template.Spec
	var out []findings.Result
	if !pod.HostNetwork {
		out = append(out, findings.Failed(name, "%s of the manifests is not on the network of its nodes (hostNetwork)", name))
	}
	for i := range in.Inventory.Nodes {
		n := &in.Inventory.Nodes[i]
		for key, value := range pod.NodeSelector {
			if n.Labels[key] != value {
				out = append(out, findings.Failed("Node "+n.Name, "%s is not for node %s: it has no label %s: %s", name, n.Name, key, value))
			}
		}
		for t := range n.Spec.Taints {
			taint := &n.Spec.Taints[t]
			tolerated := slices.ContainsFunc(pod.Tolerations, func(x corev1.Toleration) bool { return tolerates(&x, taint) })
			if taint.Effect != corev1.TaintEffectPreferNoSchedule && !tolerated && !in.Inventory.Begun() {
				out = append(out, findings.Failed("Node "+n.Name,
					"%s is not for node %s: it does not tolerate %s", name, n.Name, taint.ToString()))
			}
		}
	}
	return out
}

func tolerates(x *corev1.Toleration, taint *corev1.Taint) bool {
	if x.Effect != "" && x.Effect != taint.Effect || x.Key != "" && x.Key != taint.Key {
		return false
	}
	return x.Operator == corev1.TolerationOpExists || x.Key != "" && x.Value == taint.Value
}

func checkTarget(in Input) []findings.Result {
	s := in.Inventory
	if s.Manifests == nil {
		return findings.Skip(NoManifests)
	}
	switch want := s.Spec.PodCIDR; {
	case len(s.Manifests.Ranges) == 0 && !want.IsValid():
		return []findings.Result{findings.Failed("", "the manifests name no range for pods")}
	case want.IsValid() && len(s.Manifests.Ranges) > 0 && !slices.Contains(s.Manifests.Ranges, want):
		return []findings.Result{findings.Failed("", "the manifests say %v, and spec.cni.podCIDR is %s", s.Manifests.Ranges, want)}
	}
	return nil
}

func checkOverlaps(in Input) []findings.Result {
	var out []findings.Result
	for _, to := range in.Inventory.Target() {
		for _, services := range in.Inventory.Services {
			if to.Overlaps(services) {
				out = append(out, findings.Failed("", "%s overlaps the range of Services %s", to, services))
			}
		}
		for i := range in.Inventory.Nodes {
			n := &in.Inventory.Nodes[i]
			for _, a := range n.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil && to.Contains(ip) {
					out = append(out, findings.Failed("Node "+n.Name, "node %s has the address %s, which is in %s", n.Name, ip, to))
				}
			}
		}
	}
	return out
}

func checkNodeRanges(in Input) []findings.Result {
	if in.Inventory.From() == v1alpha1.HostLocal {
		return checkOwnRanges(in.Inventory)
	}
	if in.Inventory.Spec.To != v1alpha1.Flannel {
		return findings.Skip("pods get no addresses of the range of their Node")
	}
	var out []findings.Result
	for i := range in.Inventory.Nodes {
		n := &in.Inventory.Nodes[i]
		within := slices.ContainsFunc(in.Inventory.Target(), func(to netip.Prefix) bool {
			own, err := netip.ParsePrefix(n.Spec.PodCIDR)
			return err == nil && own.Bits() >= to.Bits() && to.Contains(own.Addr())
		})
		if !within {
			out = append(out, findings.Failed("Node "+n.Name,
				"node %s has podCIDR %q, which is not in %v", n.Name, n.Spec.PodCIDR, in.Inventory.Target()))
		}
	}
	return out
}

func checkLost(in Input) []findings.Result {
	if in.Inventory.Spec.Policies == v1alpha1.PolicyDrop || in.Inventory.Begun() {
		return findings.Skip("spec.cni.policies is Drop, or the old network is going by now")
	}
	return losses(in)
}

func checkDropped(in Input) []findings.Result {
	if in.Inventory.Spec.Policies != v1alpha1.PolicyDrop {
		return findings.Skip("spec.cni.policies is not Drop (RP5301)")
	}
	return losses(in)
}

func losses(in Input) []findings.Result {
	var out []findings.Result
	for _, l := range in.Inventory.lost() {
		out = append(out, findings.Failed(l.Object, "%s: %s", l.Object, l.Reason))
	}
	return out
}

func checkGained(in Input) []findings.Result {
	var out []findings.Result
	for _, name := range in.Inventory.gained() {
		out = append(out, findings.Failed("NetworkPolicy "+name, "NetworkPolicy %s begins to hold", name))
	}
	return out
}

func checkHostPorts(in Input) []findings.Result {
	if in.Inventory.Manifests == nil {
		return findings.Skip(NoManifests)
	}
	if in.Inventory.Manifests.Portmap {
		return nil
	}
	var out []findings.Result
	for i := range in.Inventory.Pods {
		p := &in.Inventory.Pods[i]
		ports := slices.ContainsFunc(p.Spec.Containers, func(c corev1.Container) bool {
			return slices.ContainsFunc(c.Ports, func(port corev1.ContainerPort) bool { return port.HostPort != 0 })
		})
		if Concerned(p) && ports {
			out = append(out, findings.Failed("Pod "+p.Namespace+"/"+p.Name, "pod %s/%s has a hostPort", p.Namespace, p.Name))
		}
	}
	return out
}
