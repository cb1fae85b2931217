package noderanges

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/disruption/rollout"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// A node on which apply cannot go on returns to its former range at once. The operator's pool stays
// the target, so that the operator must not look at the CiliumNode until it has forgotten, by a
// restart, what it has reserved for the node: it would write that back.

// ReturnedError says that a node could not move, and has its former range again.
type ReturnedError struct {
	Migration, Node string
	Ranges          []string
	Err             error
}

func (e *ReturnedError) Error() string {
	return fmt.Sprintf("%v; node %s has its former range %s again, and no further node was begun", e.Err, e.Node, strings.Join(e.Ranges, ","))
}

func (e *ReturnedError) Advice() string {
	return fmt.Sprintf("find the cause in the pods of Cilium on node %s and of its operator (kubectl -n kube-system describe pods), and run apply again, "+
		"which begins that node anew; or: replumb rollback %s", e.Node, e.Migration)
}

// Stalls says why no run goes on by itself: each would drain the node again.
func (*ReturnedError) Stalls() string { return v1alpha1.ReasonNodeReturned }

func (e *ReturnedError) Unwrap() error { return e.Err }

// goBack is what steps of a node's way to the target do where they fail; nil, where people go back.
func (p *Planner) goBack(r *NodeRange, d engine.Direction) func(error) ([]engine.Step, error) {
	if d == backward || !p.nodes.pooled() {
		return nil
	}
	return func(failed error) ([]engine.Step, error) {
		return p.wayBack(r, failed.Error()), p.returned(r, failed)
	}
}

func (p *Planner) returned(r *NodeRange, failed error) *ReturnedError {
	return &ReturnedError{Migration: p.Inventory.Spec.Name, Node: r.Node.Name, Ranges: r.Original, Err: failed}
}

// Return takes nodes back whose way back was cut off; nil without any. Apply ends there.
func (p *Planner) Return(to v1alpha1.DesiredState) *engine.Plan {
	var groups []engine.Group
	for i := range p.nodes.NodeRanges {
		r := &p.nodes.NodeRanges[i]
		why := r.Node.Annotations[v1alpha1.AnnotationReturning]
		if why == "" || !p.nodes.pooled() {
			continue
		}
		steps := p.wayBack(r, why)
		if to == v1alpha1.DesiredApplied {
			steps = append(steps, &engine.Wait{
				Name: "returned/" + r.Node.Name, About: "Stop, since node " + r.Node.Name + " could not move", Again: true,
				For: func(context.Context) error { return p.returned(r, errors.New(why)) },
			})
		}
		groups = append(groups, engine.InOrder(steps...)...)
	}
	if groups == nil {
		return nil
	}
	return &engine.Plan{Name: "return", Phases: []engine.Phase{{
		Name: "nodes", Title: "Take nodes back that could not move", Groups: groups,
	}}}
}

// Returning reports whether any node is on its way back.
func Returning(nodes []corev1.Node) bool {
	return slices.ContainsFunc(nodes, func(n corev1.Node) bool { return noted(&n, v1alpha1.AnnotationReturning) })
}

// wayBack are the steps of a node's way back, in this order.
func (p *Planner) wayBack(r *NodeRange, why string) []engine.Step {
	n, replaced := p.node(r, backward), &metav1.Time{}
	steps := []engine.Step{n.turnBack(why)}
	if p.nodes.holdsAddress() {
		steps = append(steps, n.hold(p.Image()), n.lead())
	}
	steps = append(steps, n.restartAgain(replaced), p.renewAfter(n, replaced))
	if p.Tries() {
		steps = append(steps, p.trial([]*NodeRange{r}, backward))
	}
	if p.nodes.holdsAddress() {
		steps = append(steps, n.letGo())
	}
	return append(steps, n.cordon().Open(), forgetReservation(p.Tools, n.name), n.release())
}

// turnBack notes on a Node why it returns, and has its CiliumNode carry the former range, at which
// the operator does not look.
func (n node) turnBack(why string) engine.Step {
	// The operator may write the next range back with what it has seen before.
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readCilium(ctx)
		switch {
		case err != nil || have.node == nil:
			return have, err
		case have.node.Annotations[v1alpha1.AnnotationReturning] == "" || have.node.Annotations[ciliumipam.IgnoreAnnotation] == "":
			return have, engine.Anew("node %s has no notes of its way back", n.name)
		case have.cilium == nil:
			return have, engine.Anew("ciliumnode %s is not there", n.name)
		case !have.cilium.Ignored || !n.carried(have.cilium):
			return have, engine.Anew("ciliumnode %s has the range %s", n.name, strings.Join(have.cilium.PodCIDRs, ","))
		}
		return have, nil
	}
	return &engine.Observed[ciliumNode]{
		Name: "return/" + n.name, About: fmt.Sprintf("Give CiliumNode %s its former range %s again", n.name, strings.Join(n.ranges, ",")),
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			err := cordon.Patch(ctx, n.cluster, have.node, func(found *corev1.Node) {
				if have.unmoved(n.ranges) {
					delete(found.Annotations, v1alpha1.AnnotationCiliumAgent)
				}
				metav1.SetMetaDataAnnotation(&found.ObjectMeta, v1alpha1.AnnotationReturning, why)
				metav1.SetMetaDataAnnotation(&found.ObjectMeta, ciliumipam.IgnoreAnnotation, "true")
			})
			switch {
			case err != nil:
				return err
			case have.cilium == nil:
				return n.makeCilium(ctx, have.node)
			case have.cilium.Ignored && n.carried(have.cilium):
				return nil
			}
			return have.cilium.Withdraw(ctx, n.cluster, n.own(have.cilium)) // its agent may be away, and copies nothing
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "Node " + n.name, Body: map[string]any{"metadata": map[string]any{"annotations": map[string]any{
				v1alpha1.AnnotationReturning: why, ciliumipam.IgnoreAnnotation: "true",
			}}}},
			engine.Change{Verb: "patch", Object: "CiliumNode " + n.name, Body: map[string]any{"spec": map[string]any{"ipam": n.carrying()}}},
		),
	}
}

// unmoved reports whether the agent is still the one that was there before the range changed, and
// has an address in it: it has seen nothing of the next one.
func (h ciliumNode) unmoved(former []string) bool {
	noted := h.node.Annotations[v1alpha1.AnnotationCiliumAgent]
	return h.livesIn(former) && slices.ContainsFunc(h.live(), func(p corev1.Pod) bool { return string(p.UID) == noted && connectivity.Ready(&p) })
}

// renewAfter restarts pods that are not of the former range, and those that have seen an agent go:
// one that had the next range has given them up.
func (p *Planner) renewAfter(n node, replaced *metav1.Time) engine.Step {
	return p.Rollout().Renew(rollout.Renewal{
		Node: n.name, Left: p.Inventory.Spec.Left(backward),
		Stale: func(pod *corev1.Pod) bool {
			return n.away(pod) || len(calico.PodAddresses(pod)) > 0 && pod.CreationTimestamp.Before(replaced)
		},
	})
}

// forgetReservation restarts the operator, which has nothing reserved then for a CiliumNode at
// which it does not look. An operator without pods has nothing reserved either.
func forgetReservation(tools migration.Deps, node string) engine.Step {
	var ended map[types.UID]bool // by this step; nil before
	read := func(ctx context.Context) ([]corev1.Pod, error) {
		pods, err := operatorPods(ctx, tools.Cluster)
		if err != nil {
			return nil, err
		}
		if ended == nil {
			return pods, engine.NotYet("Cilium's operator may have the next range reserved for node %s", node)
		}
		for i := range pods {
			if ended[pods[i].UID] {
				return nil, engine.NotYet("pod %s/%s is ending", pods[i].Namespace, pods[i].Name)
			}
		}
		return nil, nil
	}
	return &engine.Observed[[]corev1.Pod]{
		Name: "forget/" + node, About: "Restart Cilium's operator, which forgets the next range of node " + node + " then", Limit: agentTime,
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, pods []corev1.Pod) error {
			if ended == nil {
				ended = map[types.UID]bool{}
			}
			return endPods(ctx, tools.Cluster, pods, ended)
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod kube-system/* of Cilium's operator"}),
	}
}

// release has a CiliumNode and its Node as they were before the node was begun.
func (n node) release() engine.Step {
	notes := append(wayNotes(), v1alpha1.AnnotationPodCIDRs)
	read := func(ctx context.Context) (ciliumNode, error) { return n.readSettled(ctx, notes) }
	none := map[string]any{}
	for _, key := range notes {
		none[key] = nil
	}
	return &engine.Observed[ciliumNode]{
		Name: "settle/" + n.name, About: fmt.Sprintf("Have CiliumNode %s carry the range %s as before", n.name, strings.Join(n.ranges, ",")),
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			if err := have.cilium.Settle(ctx, n.cluster, n.own(have.cilium)); err != nil { // while notes have another run do so
				return err
			}
			return cordon.Patch(ctx, n.cluster, have.node, func(found *corev1.Node) {
				for _, key := range notes {
					delete(found.Annotations, key)
				}
			})
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "CiliumNode " + n.name, Body: map[string]any{"spec": map[string]any{"ipam": n.carrying()}}},
			engine.Change{Verb: "patch", Object: "Node " + n.name, Body: map[string]any{"metadata": map[string]any{"annotations": none}}},
		),
	}
}
