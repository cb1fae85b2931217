package kubeproxy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/workload"
	"github.com/replumb/replumb/internal/network/nodecleanup"
	"github.com/replumb/replumb/internal/network/proxyrules"
	"github.com/replumb/replumb/internal/safety/lease"
	"github.com/replumb/replumb/internal/spec/hook"
)

// programs are the nodes on which kube-proxy is taken for a program, as a pod's constraints.
func programs() corev1.PodSpec {
	return corev1.PodSpec{Affinity: workload.OnNodes(workload.Foreign())}
}

// addStatic takes kube-proxies that kubelets run by files, as RKE2 and kOps have them.
func (s *Inventory) addStatic(pods []corev1.Pod) {
	s.Static = map[string]*corev1.Container{}
	for i := range pods {
		if _, mirror := pods[i].Annotations[corev1.MirrorPodAnnotationKey]; !mirror {
			continue
		}
		if c := proxyIn(&pods[i].Spec); c != nil {
			s.Static[pods[i].Spec.NodeName] = c
		}
	}
}

// container is the one of kube-proxy on a node, whose image has the programs by which it writes
// rules; nil where it writes them by the node's own.
func (s *Inventory) container(node string) *corev1.Container {
	if own := s.own(); own != nil {
		return proxyIn(&own.Spec.Template.Spec)
	}
	return s.Static[node]
}

// restartNodes has the owner of kube-proxy restart it on nodes that do not have the mode.
func (p *Planner) restartNodes(d engine.Direction, mode v1alpha1.KubeProxyMode) []engine.Group {
	nodes, reached, m := p.Inventory.names(notSwitched), v1alpha1.ModeSwitched, modes{p.Inventory.from(), mode}
	if d == engine.Backward {
		nodes, reached, m.from = p.Inventory.names(marked), "", p.spec().Mode
		slices.Reverse(nodes)
	}
	return p.rounds(phaseNodes, d, nodes, func(node string) []engine.Step { return p.restart(node, m, reached, d) })
}

// restart has kube-proxy start in another mode on a node, while a copy of its rules leads. It
// removes those of its former mode itself.
func (p *Planner) restart(node string, m modes, reached string, d engine.Direction) []engine.Step {
	steps := append(p.before(node, m), p.mark(node, v1alpha1.ModeRestarting, "Record that "+m.leads()))
	if p.spec().Program.Restart != nil {
		steps = append(steps, p.callRestart(node, m.to, d))
	}
	steps = append(steps, p.awaitRestart(node, m))
	for _, g := range p.steady("rules of mode "+string(m.to)+" on "+node, d) { // a loss ends the run while the copy leads
		steps = append(steps, g.Steps...)
	}
	steps = append(append(steps, p.trial(node, "services", m.to)), p.after(node, m)...)
	return append(steps, p.mark(node, reached, "Record that kube-proxy has mode "+string(m.to)))
}

// forgetNodes removes what says on Nodes how far they are.
func (p *Planner) forgetNodes() (steps []engine.Step) {
	if p.spec().Program == nil || !p.Inventory.known() {
		return nil
	}
	for _, node := range p.Inventory.names(marked) {
		steps = append(steps, p.mark(node, "", "Forget that kube-proxy was changed"))
	}
	return steps
}

// Request is what the action gets that restarts kube-proxy on a node. docs/hooks.md shows one.
type Request struct {
	APIVersion string          `json:"apiVersion"`
	Kind       string          `json:"kind"`
	Migration  string          `json:"migration"`
	Run        hook.RunPurpose `json:"run"`
	Action     string          `json:"action"`
	// Node and Address say where, Mode is what kube-proxy is to have there.
	Node    string                 `json:"node"`
	Address string                 `json:"address,omitempty"`
	Mode    v1alpha1.KubeProxyMode `json:"mode"`
}

const actionRestart = "restart"

func (r *Request) Environ() []string {
	return []string{
		"REPLUMB_MIGRATION=" + r.Migration, "REPLUMB_RUN=" + string(r.Run), "REPLUMB_ACTION=" + r.Action,
		"REPLUMB_NODE=" + r.Node, "REPLUMB_ADDRESSES=" + r.Address, "REPLUMB_MODE=" + string(r.Mode),
	}
}

// callRestart calls the action. Only rules on the node show what it did, so it runs in every run.
func (p *Planner) callRestart(node string, mode v1alpha1.KubeProxyMode, d engine.Direction) engine.Step {
	once := callout.Once{Action: *p.spec().Program.Restart}
	r := &Request{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "KubeProxyRequest", Migration: p.spec().Name, Run: hook.Apply, Action: actionRestart,
		Node: node, Mode: mode,
	}
	if d == engine.Backward {
		r.Run = hook.Rollback
	}
	if n := p.Inventory.node(node); n != nil {
		r.Address = inventory.InternalIP(n)
	}
	return &engine.Write{
		Name: "restart/" + node, About: fmt.Sprintf("Restart kube-proxy in mode %s on node %s", mode, node), As: engine.RoleCall, Limit: once.Longest(),
		Write: func(ctx context.Context) error {
			err := once.Call(ctx, r, nil)
			if callout.Called(err) {
				return &hook.FailedError{Hook: r.Action, Cause: err}
			}
			return err
		},
		Changes: func() ([]engine.Change, error) {
			return []engine.Change{{Verb: "call", Object: callout.Name(once.Action), Body: r}}, nil
		},
	}
}

func (s *Inventory) node(name string) *corev1.Node {
	for i := range s.Nodes {
		if s.Nodes[i].Name == name {
			return &s.Nodes[i]
		}
	}
	return nil
}

// awaitRestart waits until rules of the new mode lead: for a person, unless an action was called.
func (p *Planner) awaitRestart(node string, m modes) engine.Step {
	s := awaited{p.compareRules(node, m, proxyrules.BesideIPVS)}
	if p.spec().Program.Restart != nil {
		return s
	}
	return &restartGate{awaited: s, guide: restartGuide(p.Inventory.node(node), m), wait: p.spec().Program.GateWait.Duration}
}

// awaited holds the lock while k3s, and with it the only API server, may be restarted.
type awaited struct{ *rulesStep }

// Waits lets an interrupted run end at once: its pod only looks.
func (awaited) Waits() {}

func (s awaited) Verify(ctx context.Context) error { return lease.Outlasting(s.rulesStep.Verify)(ctx) }

var _ engine.Guide = (*restartGate)(nil)

// restartGate waits for a person.
type restartGate struct {
	awaited

	guide string
	wait  time.Duration
}

func (*restartGate) Role() engine.StepRole     { return engine.RoleGate }
func (g *restartGate) Guide() string           { return g.guide }
func (g *restartGate) Deadline() time.Duration { return g.wait }

// restartGuide says what to do on a node.
func restartGuide(n *corev1.Node, m modes) string {
	leads := m.leads()
	end := strings.ToUpper(leads[:1]) + leads[1:] + " meanwhile. replumb goes on by itself when that mode leads to every Service; " +
		"where it does already, there is nothing to do."
	version := n.Status.NodeInfo.KubeletVersion
	for _, product := range []string{"k3s", "rke2"} {
		if strings.Contains(version, "+"+product) {
			return fmt.Sprintf(`on node %[1]s, in /etc/rancher/%[2]s/config.yaml:
  kube-proxy-arg:
    - proxy-mode=%[3]s
Keep what kube-proxy-arg has already. Then systemctl restart %[4]s (on a server: %[5]s).
`, n.Name, product, m.to, product+"-agent", map[string]string{"k3s": "k3s", "rke2": "rke2-server"}[product]) + end
		}
	}
	return fmt.Sprintf("On node %s, set mode: %s in the configuration of kube-proxy (or --proxy-mode, where it has no --config), "+
		"and restart it, without --cleanup. ", n.Name, m.to) + end
}

// NoProxyRulesError is a node without rules that could be copied.
type NoProxyRulesError struct{ Node, Says string }

func (e *NoProxyRulesError) Error() string {
	text := fmt.Sprintf("node %s: kube-proxy has no rules of mode iptables or nftables there that the node's programs list", e.Node)
	if e.Says != "" {
		text += "; it says that it has mode " + e.Says
	}
	return text
}

// Advice is for the node's operator.
func (e *NoProxyRulesError) Advice() string {
	if e.Says == proxyrules.IPVS {
		return "set spec.kubeProxy.program.from: ipvs, which leads to mode iptables (docs/runbooks/kube-proxy.md#out-of-ipvs)"
	}
	return "see that kube-proxy runs there, and that the node has iptables of the kind that it writes by (iptables -V); then go on with replumb resume"
}

// copyOfProgram says what a look at a node's rules means before kube-proxy is restarted there.
func copyOfProgram(node string, to v1alpha1.KubeProxyMode, r *nodecleanup.TracesReport) (remark string, err error) {
	has := func(what string) bool { return slices.Contains(r.Found, what) }
	former := string(other(to))
	switch {
	case has(former) || has(proxyrules.EarlierCopy):
		return "", nil
	case has(string(to)):
		return fmt.Sprintf(
			"kube-proxy has mode %s on node %s already: it was restarted before its turn, while no copy led, or always had it", to, node), nil
	}
	return "", &NoProxyRulesError{Node: node, Says: proxyrules.Said(r)}
}
