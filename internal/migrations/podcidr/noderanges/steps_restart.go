package noderanges

import (
	"context"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// Cilium's agent takes its node's range, and an address for the node itself, when it starts. While
// it runs it may take back what the next one is to find, up to its end. So that is written once
// more when it has ended.

// restartCilium restarts a node's agent, which has not taken the next range.
func (n node) restartCilium() engine.Step {
	ended := map[types.UID]bool{}
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readCilium(ctx)
		switch {
		case err != nil || have.node == nil:
			return have, err
		case !have.restarted(n.ranges):
			return have, engine.NotYet("Cilium's agent on node %s has not taken the range %s", n.name, strings.Join(n.ranges, ","))
		}
		return have, have.running()
	}
	return &engine.Observed[ciliumNode]{
		Name: "agent/" + n.name, About: "Restart Cilium's agent on node " + n.name + ", which takes the range then", Limit: n.patience(),
		As: engine.RoleMove, GoBack: n.goBack, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			if have.restarted(n.ranges) {
				return n.starting(have)
			}
			was := have.node.Annotations[v1alpha1.AnnotationCiliumAgent]
			return n.replaceAgents(ctx, have, ended, func(p *corev1.Pod) bool { return string(p.UID) == was || connectivity.Ready(p) })
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod */* of Cilium's agent on node " + n.name}),
	}
}

// restartAgain restarts the agent of a node, unless it has never left the former range. A run that
// begins anew restarts it once more, since it cannot tell with which range it has started.
func (n node) restartAgain(replaced *metav1.Time) engine.Step {
	ended := map[types.UID]bool{}
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readCilium(ctx)
		if err != nil || have.node == nil {
			return have, err
		}
		stayed := have.node.Annotations[v1alpha1.AnnotationCiliumAgent] == "" && have.livesIn(n.ranges)
		switch {
		case len(ended) == 0 && !stayed:
			return have, engine.NotYet("Cilium's agent on node %s may have another range than %s", n.name, strings.Join(n.ranges, ","))
		case !have.livesIn(n.ranges):
			return have, engine.NotYet("Cilium's agent on node %s has not taken the range %s", n.name, strings.Join(n.ranges, ","))
		case slices.ContainsFunc(have.agents, func(p corev1.Pod) bool { return ended[p.UID] }):
			return have, engine.NotYet("Cilium's agent on node %s is ending", n.name)
		}
		err = have.running()
		if err == nil && len(ended) > 0 {
			*replaced = have.live()[0].CreationTimestamp
		}
		return have, err
	}
	return &engine.Observed[ciliumNode]{
		Name: "agent/" + n.name, About: "Restart Cilium's agent on node " + n.name + ", which takes the former range then", Limit: n.patience(),
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			first := len(ended) == 0
			gone := !slices.ContainsFunc(have.agents, func(p corev1.Pod) bool { return ended[p.UID] })
			if !first && gone && have.livesIn(n.ranges) {
				return n.starting(have)
			}
			return n.replaceAgents(ctx, have, ended, func(p *corev1.Pod) bool { return first || connectivity.Ready(p) })
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod */* of Cilium's agent on node " + n.name}),
	}
}

// replaceAgents ends agents, and has the CiliumNode carry what the next one is to take. It is
// called again until that runs.
func (n node) replaceAgents(ctx context.Context, have ciliumNode, ended map[types.UID]bool, stale func(*corev1.Pod) bool) error {
	live := have.live()
	if len(live) == len(have.agents) { // else one is ending, and may write
		if err := n.carryOn(ctx, have); err != nil {
			return err
		}
	}
	live = slices.DeleteFunc(live, func(p corev1.Pod) bool { return ended[p.UID] || !stale(&p) })
	if err := endPods(ctx, n.cluster, live, ended); err != nil {
		return err
	}
	return n.starting(have)
}

// carryOn has the CiliumNode carry again what an agent is to take that starts.
func (n node) carryOn(ctx context.Context, have ciliumNode) error {
	c, router := have.cilium, ciliumipam.Router(nodeipam.Range(n.ranges))
	switch {
	case c == nil:
		return n.makeCilium(ctx, have.node)
	case n.holds && (!n.leads(c) || !slices.Contains(c.Internal, router)):
		return c.Lead(ctx, n.cluster, n.own(c), router, n.former.String())
	case !n.holds && !n.carried(c):
		return c.Give(ctx, n.cluster, n.own(c))
	}
	return nil
}

// starting is an error that says what the next agent lacks.
func (n node) starting(have ciliumNode) error {
	if err := have.running(); err != nil {
		return err
	}
	return engine.NotYet("Cilium's agent on node %s is starting", n.name)
}
