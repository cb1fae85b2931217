package noderanges

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// ciliumNode is a node as it is now, its CiliumNode, and the pods of its agent. The first two are
// nil if they are not there.
type ciliumNode struct {
	node   *corev1.Node
	cilium *ciliumipam.CiliumNode
	agents []corev1.Pod
}

func (n node) readCilium(ctx context.Context) (have ciliumNode, err error) {
	if have.node, err = cordon.Read(ctx, n.cluster, n.name); err != nil || have.node == nil {
		return have, err
	}
	if have.cilium, err = ciliumipam.Get(ctx, n.cluster, n.name, n.pool); err != nil {
		return have, err
	}
	have.agents, err = n.pods(ctx)
	have.agents = slices.DeleteFunc(have.agents, func(p corev1.Pod) bool {
		ref := metav1.GetControllerOf(&p)
		return ref == nil || !slices.Contains(n.agents, client.ObjectKey{Namespace: p.Namespace, Name: ref.Name})
	})
	return have, err
}

// carried reports whether a CiliumNode has the next ranges of its node, maybe beside further ones
// of its pool, and holds the former one or not.
func (n node) carried(c *ciliumipam.CiliumNode) bool {
	missing := func(r string) bool { return !slices.Contains(c.PodCIDRs, r) }
	return !slices.ContainsFunc(c.PodCIDRs, n.leaves) && !slices.ContainsFunc(n.ranges, missing)
}

// carriedAlone is the same without the former one.
func (n node) carriedAlone(c *ciliumipam.CiliumNode) bool { return n.carried(c) && len(c.Held) == 0 }

// own are the next ranges of a node, and further ones that it has of its pool already.
func (n node) own(c *ciliumipam.CiliumNode) []string {
	return slices.Concat(n.ranges, slices.DeleteFunc(c.Further(n.ranges), n.leaves))
}

// leaves reports whether a range is one that pods leave.
func (n node) leaves(text string) bool {
	p, err := netip.ParsePrefix(text)
	return err == nil && slices.ContainsFunc(n.left, func(l netip.Prefix) bool { return nodeipam.Within(l, p) })
}

// carrying is what a CiliumNode says of its ranges, and of those that are held beside them.
func (n node) carrying(held ...string) map[string]any {
	return ciliumipam.Fields(n.pool, n.ranges, held...)
}

// restarted reports whether the agent has started since the range changed.
func (h ciliumNode) restarted(ranges []string) bool {
	before := h.node.Annotations[v1alpha1.AnnotationCiliumAgent]
	return h.livesIn(ranges) &&
		!slices.ContainsFunc(h.agents, func(p corev1.Pod) bool { return string(p.UID) == before })
}

// live are agents that are not ending.
func (h ciliumNode) live() []corev1.Pod {
	return slices.DeleteFunc(slices.Clone(h.agents), func(p corev1.Pod) bool { return !p.DeletionTimestamp.IsZero() })
}

// running fails unless an agent is ready on the node.
func (h ciliumNode) running() error {
	live := h.live()
	switch {
	case len(live) == 0:
		return engine.NotYet("node %s has no agent of Cilium", h.node.Name)
	case !connectivity.Ready(&live[0]):
		return engine.NotYet("pod %s/%s is not ready: %s", live[0].Namespace, live[0].Name, connectivity.Why(&live[0]))
	}
	return nil
}

// livesIn reports whether the node has an address of its own within its ranges.
func (h ciliumNode) livesIn(ranges []string) bool {
	return h.cilium != nil && h.cilium.Lives(nodeipam.Range(ranges))
}

// give has a CiliumNode carry the next ranges of its node, which the operator reserves.
func (n node) give() engine.Step {
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readCilium(ctx)
		if err != nil || have.node == nil {
			return have, err
		}
		switch has := have.cilium; {
		case has == nil:
			return have, engine.NotYet("ciliumnode %s is not there", n.name)
		case !n.carried(has):
			return have, engine.NotYet("ciliumnode %s has the range %s", n.name, strings.Join(has.PodCIDRs, ","))
		case has.Problem != "":
			return have, engine.NotYet("Cilium's operator has not reserved the range of ciliumnode %s: %s", n.name, has.Problem)
		}
		return have, nil
	}
	return &engine.Observed[ciliumNode]{
		Name: "switch/" + n.name, About: fmt.Sprintf("Give CiliumNode %s the range %s", n.name, strings.Join(n.ranges, ",")), As: engine.RoleMove,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read), Write: n.writeRanges, GoBack: n.goBack,
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "Node " + n.name, Body: map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPodCIDRs: "the range it has"}},
			}},
			engine.Change{Verb: "patch", Object: "CiliumNode " + n.name, Body: map[string]any{"spec": map[string]any{"ipam": n.carrying()}}},
		),
	}
}

// writeRanges notes first on the Node what there was.
func (n node) writeRanges(ctx context.Context, have ciliumNode) error {
	if have.cilium == nil {
		return n.makeCilium(ctx, have.node)
	}
	if n.carried(have.cilium) {
		return nil // the operator has yet to say that it has reserved it
	}
	err := cordon.Patch(ctx, n.cluster, have.node, func(found *corev1.Node) {
		if had := strings.Join(have.cilium.Own(), ","); had != "" && found.Annotations[v1alpha1.AnnotationPodCIDRs] == "" {
			metav1.SetMetaDataAnnotation(&found.ObjectMeta, v1alpha1.AnnotationPodCIDRs, had)
		}
		for i := range have.agents {
			metav1.SetMetaDataAnnotation(&found.ObjectMeta, v1alpha1.AnnotationCiliumAgent, string(have.agents[i].UID))
		}
	})
	if err != nil {
		return err
	}
	return have.cilium.Give(ctx, n.cluster, n.own(have.cilium))
}

// makeCilium makes the CiliumNode of a node, unless its agent has done so by now.
func (n node) makeCilium(ctx context.Context, of *corev1.Node) error {
	err := ciliumipam.Make(ctx, n.cluster, of, n.pool, n.ranges)
	if apierrors.IsAlreadyExists(err) {
		return engine.NotYet("%w", err)
	}
	return err
}

// wayNotes are what a Node says only while it is on its way.
func wayNotes() []string {
	return []string{ciliumipam.IgnoreAnnotation, v1alpha1.AnnotationCiliumAgent, v1alpha1.AnnotationReturning}
}

// readSettled fails while a CiliumNode carries more than its ranges, or its Node has such notes.
func (n node) readSettled(ctx context.Context, notes []string) (ciliumNode, error) {
	have, err := n.readCilium(ctx)
	if err != nil || have.node == nil || have.cilium == nil {
		return have, err
	}
	switch has := have.cilium; {
	case !n.carriedAlone(has) || has.Ignored:
		return have, engine.NotYet("ciliumnode %s has the range %s", n.name, strings.Join(has.PodCIDRs, ","))
	case noted(have.node, notes...):
		return have, engine.NotYet("node %s has notes of its way", n.name)
	}
	return have, nil
}

// settle has a CiliumNode carry its ranges alone again, and takes off what its Node says of the
// way there.
func (n node) settle() engine.Step {
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readSettled(ctx, wayNotes())
		if err == nil && have.node != nil && have.cilium != nil && have.cilium.Problem != "" {
			err = engine.NotYet("Cilium's operator has not reserved the range of ciliumnode %s: %s", n.name, have.cilium.Problem)
		}
		return have, err
	}
	return &engine.Observed[ciliumNode]{
		Name: "settle/" + n.name, About: fmt.Sprintf("Have CiliumNode %s carry the range %s alone", n.name, strings.Join(n.ranges, ",")),
		As: engine.RoleMove, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			err := cordon.Patch(ctx, n.cluster, have.node, func(found *corev1.Node) {
				for _, key := range wayNotes() {
					delete(found.Annotations, key)
				}
			})
			if err != nil || n.carriedAlone(have.cilium) && !have.cilium.Ignored {
				return err
			}
			return have.cilium.Settle(ctx, n.cluster, n.own(have.cilium))
		},
		Changes: engine.Shows(
			engine.Change{Verb: "patch", Object: "CiliumNode " + n.name, Body: map[string]any{"spec": map[string]any{"ipam": n.carrying()}}},
			engine.Change{Verb: "patch", Object: "Node " + n.name, Body: map[string]any{
				"metadata": map[string]any{"annotations": map[string]any{ciliumipam.IgnoreAnnotation: nil, v1alpha1.AnnotationCiliumAgent: nil}},
			}},
		),
	}
}
