package noderanges

import (
	"strings"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
)

// The flags by which controller managers give Nodes ranges.
const (
	allocates = "allocate-node-cidrs"
	rangeFlag = "cluster-cidr"
)

// gates pass what rangeGate waits for; nil, if that is left to people.
func (p *Planner) gates() *kubeadmgate.Gates {
	if p.nodes.Kubeadm == nil {
		return nil
	}
	g := kubeadmgate.New(p.Tools.Cluster, p.Inventory.Spec.Name, p.Image(), p.nodes.Kubeadm, p.Inventory.Nodes)
	g.ByHand = "leave spec.podCIDR.nodes.gates out"
	return g
}

// pass has every controller manager restarted as a gate asks for, one after the other, before the
// gate looks what they do.
func (p *Planner) pass(gate *rangeGate) []engine.Group {
	g := p.gates()
	if g == nil {
		return engine.InOrder(gate)
	}
	var steps []engine.Step
	if gate.mode != gatePaused {
		steps = append(steps, g.PodSubnet(p.ranges(gate.mode)))
	}
	for _, node := range g.ControlPlanes {
		steps = append(steps, g.Flags(gate.id, node, p.flags(gate.mode)))
	}
	gate.guide = "" // nobody is to do anything
	return engine.InOrder(append(steps, gate)...)
}

func (p *Planner) ranges(mode gateMode) string {
	if mode == gateRestored {
		return strings.Join(podmove.Texts(p.Inventory.Spec.From), ",")
	}
	return strings.Join(podmove.Texts(p.Inventory.Spec.To), ",")
}

func (p *Planner) flags(mode gateMode) onnode.FlagChange {
	c := onnode.FlagChange{
		Program: string(controlplane.ControllerManager),
		From:    map[string]string{allocates: "true"}, To: map[string]string{allocates: "false"},
	}
	if mode == gatePaused {
		return c
	}
	c.From, c.To = c.To, c.From
	c.From[rangeFlag], c.To[rangeFlag] = p.ranges(gateRestored), p.ranges(gateRepointed)
	if mode == gateRestored {
		c.From[rangeFlag], c.To[rangeFlag] = c.To[rangeFlag], c.From[rangeFlag]
	}
	return c
}

// lookAtNodes has replumb see before the first write whether both gates can be passed. Between them
// the range is changed, so that the second is looked at as it would be now.
func (p *Planner) lookAtNodes(g *kubeadmgate.Gates) []engine.Group {
	both := p.flags(gatePaused)
	both.From[rangeFlag], both.To[rangeFlag] = p.ranges(gateRestored), p.ranges(gateRepointed)
	return g.Examine(kubeadmgate.Expected{Flags: []onnode.FlagChange{both}})
}

func kubeadmChecks() []findings.Check[Input] {
	return []findings.Check[Input]{
		{
			Code: "RP2510", Severity: findings.Blocking, Run: checkMadeByKubeadm,
			Claim: "with gates: Kubeadm, kubeadm made the cluster, and its machines stay",
			Why: "replumb changes files as kubeadm writes them, on the machines that there are: another installer writes others, and who replaces machines " +
				"brings the old values back",
			Fix: "leave gates out, and do at each gate what the page about your platform says",
		},
		{
			Code: "RP2511", Severity: findings.Blocking, Run: checkKubeadmConfig,
			Claim: "with gates: Kubeadm, kubeadm-config is as kubeadm writes it, and its networking counts",
			Why: "replumb changes networking.podSubnet, by which kubeadm makes control planes that join, and upgrades them; flags in extraArgs would " +
				"win over it, and nodes' ranges of another size than a controller manager gives by itself take a flag more",
			Fix: "bring ConfigMap kube-system/kubeadm-config into that form, or leave gates out",
		},
	}
}

func checkMadeByKubeadm(in Input) []findings.Result {
	if in.Kubeadm == nil {
		return findings.Skip("spec.podCIDR.nodes.gates is not Kubeadm")
	}
	return in.Kubeadm.NotMade(inventory.OriginOf(in.Inventory.Nodes, in.Kubeadm.Configuration != ""))
}

func checkKubeadmConfig(in Input) []findings.Result {
	if in.Kubeadm == nil {
		return findings.Skip("spec.podCIDR.nodes.gates is not Kubeadm")
	}
	out := in.Kubeadm.Unusual(allocates, rangeFlag, "node-cidr-mask-size")
	if bits := targetBits(in.Ranges); bits != usualBits {
		out = append(out, findings.Failed("", "nodes are to have ranges of size /%d, for which --node-cidr-mask-size would have to be added", bits))
	}
	return out
}
