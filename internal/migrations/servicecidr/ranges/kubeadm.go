package ranges

import (
	"context"
	"net/netip"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
)

// rangeFlag is what API servers and controller managers have their Service range by.
const rangeFlag = "service-cluster-ip-range"

func (r *RangePlan) byKubeadm(gate v1alpha1.GateName) bool {
	return r.Kubeadm != nil && r.Inventory.Spec.ByKubeadm(gate)
}

// certify has every API server serve a certificate for both addresses, and proves it as the gate
// does.
func (r *RangePlan) certify(gate *engine.Wait, old, want netip.Addr) []engine.Step {
	steps := []engine.Step{r.Kubeadm.AddCertSANs(old, want)}
	for _, node := range r.Kubeadm.ControlPlanes {
		steps = append(steps, r.Kubeadm.Certificate(node, []string{old.String(), want.String()}, gate.For))
	}
	return append(steps, gate)
}

// repoint restarts the programs of one control plane after the other.
func (r *RangePlan) repoint(gate *engine.Wait, want, other []netip.Prefix) []engine.Step {
	steps := []engine.Step{r.Kubeadm.ServiceSubnet(FlagText(want))}
	for _, node := range r.Kubeadm.ControlPlanes {
		for _, c := range FlagChanges(want, other) {
			steps = append(steps, r.Kubeadm.Flags("flags", node, c))
		}
	}
	return append(steps, gate)
}

// Flags are the ranges that API servers have as their flag, and are to have; none, if they keep
// them.
func (r *RangePlan) Flags() (was, becomes []netip.Prefix) {
	if r.Inventory.Bitmap { // which has one family
		return r.Inventory.Spec.From, r.Inventory.Spec.To[:1]
	}
	was, becomes, _ = DefaultRanges(r.Inventory)
	return was, becomes
}

// FlagChanges are those of the programs of a control plane. kubeadm gives controller managers a
// Service range only where it gives them one for pods.
func FlagChanges(want, other []netip.Prefix) []onnode.FlagChange {
	from, to := map[string]string{rangeFlag: FlagText(other)}, map[string]string{rangeFlag: FlagText(want)}
	return []onnode.FlagChange{
		{Program: string(controlplane.APIServer), From: from, To: to},
		{Program: string(controlplane.ControllerManager), From: from, To: to, AbsentIsRight: true},
	}
}

// NameDNS has one kubelet after the other name other addresses of cluster DNS, and proves it as the
// gate does.
func NameDNS(g *kubeadmgate.Gates, gate *engine.Wait, k *Kubelets, from, to []netip.Addr) []engine.Step {
	was, is := lists.Strings(from), lists.Strings(to)
	steps := []engine.Step{g.KubeletDNS(was, is)}
	for _, node := range g.Nodes {
		steps = append(steps, g.Kubelet(node, was, is, func(ctx context.Context) error {
			if reason := k.ask(ctx, node, false); reason != "" {
				return engine.NotYet("%s", reason)
			}
			return nil
		}))
	}
	return append(steps, gate)
}
