package kubeproxy

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/taskpod"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/nodepod"
	"github.com/replumb/replumb/internal/network/proxyrules"
)

// modes are those that one node goes between.
type modes struct{ from, to v1alpha1.KubeProxyMode }

// beside reports whether one of them is ipvs. Then nothing is copied: neither mode removes what the
// other has when it starts, and finish removes what is left of ipvs.
func (m modes) beside() bool {
	return m.from == v1alpha1.KubeProxyIPVS || m.to == v1alpha1.KubeProxyIPVS
}

// before has something lead on a node whatever kube-proxy removes when it starts.
func (p *Planner) before(node string, m modes) []engine.Step {
	switch {
	case m.from == v1alpha1.KubeProxyIPVS:
		return []engine.Step{p.leaveAddresses(node)}
	case m.beside():
		return nil
	}
	return []engine.Step{p.copyRules(node, m)}
}

// leads says what that is.
func (m modes) leads() string {
	switch {
	case m.from == v1alpha1.KubeProxyIPVS:
		return "IPVS leads"
	case m.beside():
		return "rules of mode " + string(m.from) + " lead"
	}
	return "a copy of the rules leads"
}

// after removes what would lead on beside the new mode. Of ipvs it is finish that does so: its
// connections live on.
func (p *Planner) after(node string, m modes) []engine.Step {
	switch {
	case m.from == v1alpha1.KubeProxyIPVS:
		return []engine.Step{p.quiesce(node)}
	case m.beside():
		return []engine.Step{p.clean(node, nodecleanup.ProxyBesideIPVS, "clean", "Remove what mode "+string(m.from)+" has left")}
	}
	return []engine.Step{p.cleanMode(node, m.from), p.forgetCopy(node)}
}

// alone looks once more where both kube-proxies have written a chain by turns: now the one that is
// left has.
func (p *Planner) alone(node string, m modes) []engine.Step {
	if !m.beside() {
		return nil
	}
	s := p.compareRules(node, m, proxyrules.BesideIPVS)
	s.id, s.title = "alone/"+node, fmt.Sprintf("Verify that mode %s alone leads to every Service on node %s", m.to, node)
	return []engine.Step{s}
}

// ipvsStep runs a sub-command of replumb node ipvs.
type ipvsStep struct {
	*nodepod.Step

	remark string
}

func (s *ipvsStep) Note() string { return s.remark }

func (p *Planner) ipvs(node, prefix, title string, args ...string) *ipvsStep {
	s := nodepod.New(p.Tools.Client(), p.spec().Name, p.Image, nodepod.VerbIPVS, node, prefix, title+" on node "+node,
		append(args, "--root="+taskpod.HostRoot)...)
	return &ipvsStep{Step: s}
}

const verbLeave = "leave"

// leaveAddresses has what programs of the node connect to from now on be connected to from an
// address that stays, and says what leads until rules do.
func (p *Planner) leaveAddresses(node string) engine.Step {
	s := p.ipvs(node, "leave", "Have the node's own programs call Services from its own address", verbLeave)
	s.Further = []engine.Change{{Verb: "write", Object: "Node " + node, Body: map[string]any{"source": "routes of interface kube-ipvs0"}}}
	s.Evaluate = func(r *nodecleanup.TracesReport) (err error) {
		s.remark, err = standing(node, r)
		return err
	}
	return s
}

// quiesce has nothing new go by virtual servers, which nobody keeps up any more: where a Service
// has lost its endpoints they would lead to what is at those addresses by then. kube-proxy in mode
// ipvs gives servers their weight again when it starts (syncEndpoint in pkg/proxy/ipvs of
// k8s.io/kubernetes).
func (p *Planner) quiesce(node string) engine.Step {
	s := p.ipvs(node, "quiesce", "Have IPVS keep its connections and take no new ones", "quiesce")
	s.Further = []engine.Change{{Verb: "write", Object: "Node " + node, Body: map[string]any{"weight": "0, of kube-proxy's virtual servers"}}}
	return s
}

// standing says what leads on a node that leaves mode ipvs.
func standing(node string, r *nodecleanup.TracesReport) (string, error) {
	n, said := proxyrules.ServersLead(r), proxyrules.Said(r)
	if said == proxyrules.NFTables {
		return "", &WrongModeError{Node: node, Says: said}
	}
	if n == "0" {
		return fmt.Sprintf("IPVS has no virtual server of kube-proxy on node %s: it was restarted, or kube-proxy had another mode there", node), nil
	}
	return fmt.Sprintf("no rules are copied: %s virtual servers of IPVS lead on node %s until rules of mode iptables do, and stay until finish", n, node), nil
}

// WrongModeError is a node in another mode than the Migration says.
type WrongModeError struct{ Node, Says string }

func (e *WrongModeError) Error() string {
	return fmt.Sprintf("node %s: kube-proxy says that it has mode %s, not ipvs", e.Node, e.Says)
}

// Advice is for who wrote the Migration.
func (*WrongModeError) Advice() string {
	return "nothing was restarted there; give a Migration that names that mode as spec.kubeProxy.program.from, or none, another name"
}

// remains reports whether something of ipvs is on nodes once they have their mode.
func (p *Planner) remains() bool {
	s := p.Inventory
	return s.known() && s.from() == v1alpha1.KubeProxyIPVS && s.Spec.Mode != v1alpha1.KubeProxyIPVS
}

// leaveIPVS waits until nothing uses what mode ipvs has left.
func (p *Planner) leaveIPVS() []engine.Group {
	return p.onNodes("Mode ipvs", func(node string) engine.Step {
		s := p.ipvs(node, "unused", "Wait until no connection goes by what mode ipvs has left", verbLeave, "--timeout="+idleLook.String())
		return &ipvsGate{ipvsStep: s, wait: p.gateWait()}
	})
}

// removeIPVS removes it.
func (p *Planner) removeIPVS() []engine.Group {
	return p.onNodes("Mode ipvs", func(node string) engine.Step {
		s := p.ipvs(node, "remove", "Remove what mode ipvs has left", "remove")
		s.Further = []engine.Change{{Verb: "clean", Object: "Node " + node, Body: map[string]any{
			"remove": traces(nodecleanup.ProxyIPVS).Describe(),
		}}}
		return &ipvsGate{ipvsStep: s, wait: p.gateWait()}
	})
}

const (
	// nodesAtOnce is how many nodes are looked at side by side.
	nodesAtOnce = 10
	// idleLook is how long one pod waits for connections to end.
	idleLook = time.Minute
)

func (p *Planner) onNodes(title string, step func(node string) engine.Step) []engine.Group {
	if !p.remains() {
		return nil
	}
	var steps []engine.Step
	for _, n := range p.Inventory.concerned() {
		steps = append(steps, step(n.Name))
	}
	return engine.AtOnce(nodesAtOnce, title, steps...)
}

func (p *Planner) gateWait() time.Duration {
	if program := p.spec().Program; program != nil {
		return program.GateWait.Duration
	}
	return time.Hour
}

var _ engine.Guide = (*ipvsGate)(nil)

// ipvsGate waits for connections to end, which a person may have to see to.
type ipvsGate struct {
	*ipvsStep

	wait time.Duration
}

func (*ipvsGate) Role() engine.StepRole     { return engine.RoleGate }
func (g *ipvsGate) Deadline() time.Duration { return g.wait }

func (*ipvsGate) Guide() string {
	return "Nothing new goes by what mode ipvs has left. Open connections end with their clients, or with the pods that they lead to: " +
		"kubectl rollout restart, where one stays open. replumb goes on by itself when none is. Until then nothing is removed."
}

// Waits lets an interrupted run end at once: what its pod does is safe to cut off.
func (*ipvsGate) Waits() {}

// Verify asks again as long as something is open.
func (g *ipvsGate) Verify(ctx context.Context) error {
	r, err := g.Outcome(ctx)
	if err != nil {
		return err
	}
	if len(r.Problems) == 0 {
		return g.End(ctx)
	}
	if err := g.Start(ctx); err != nil {
		return err
	}
	return engine.NotYet("node %s: connections still go by it: %s", g.Node, strings.Join(r.Problems, "; "))
}
