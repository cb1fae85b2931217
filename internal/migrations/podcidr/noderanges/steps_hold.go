package noderanges

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/disruption/cordon"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/ciliumipam"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// A node's own packets to pods of other nodes go through tunnels, and have the address of
// cilium_host. An agent that starts with another range takes it off, with which the kernel drops
// all routes of the interface, until it sets those of the new one, some three seconds later; and
// agents of other nodes lead answers to the former one nowhere. So until then the interface has
// both addresses, loopback has the former one as well, and the CiliumNode carries both ranges, at
// which the operator does not look meanwhile.

// holdsAddress reports whether nodes keep the address that they have in their former range, until
// their agent has set the routes of the next.
func (s *Inventory) holdsAddress() bool {
	return s.pooled() && !s.Cilium.Config.Native && s.Spec.Tunnels == v1alpha1.TunnelsHold
}

// leads reports whether a CiliumNode has other nodes lead both ranges to the node.
func (n node) leads(c *ciliumipam.CiliumNode) bool {
	return n.carried(c) && slices.Equal(c.Held, []string{n.former.String()})
}

// holder is the pod that keeps a node's former address.
func (n node) holder(image pull.Image) *corev1.Pod {
	former := n.former.String()
	spec := podmove.OnHost(image,
		podmove.NetAdmin("hold", image, []string{
			"tunnels", "succeed", ciliumipam.Device, ciliumipam.Router(nodeipam.Range(n.ranges)).String(), former,
		}),
		podmove.NetAdmin("keep", image, []string{"tunnels", "keep", former}))
	spec.NodeName = n.name
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: n.holderKey().Namespace, Name: n.holderKey().Name,
			Labels: map[string]string{v1alpha1.LabelMigration: n.migration, podmove.TunnelsLabel: "node"},
		},
		Spec: spec,
	}
}

// hold has a pod keep the former address, and give Cilium's interface the next one.
func (n node) hold(image pull.Image) engine.Step {
	pod := n.holder(image)
	read := func(ctx context.Context) (*corev1.Pod, error) {
		have, err := n.readCilium(ctx)
		if err != nil || have.node == nil || have.restarted(n.ranges) {
			return nil, err
		}
		found, err := n.findHolder(ctx)
		switch {
		case err != nil:
			return nil, err
		case found == nil:
			return nil, engine.NotYet("node %s has no pod %s/%s", n.name, pod.Namespace, pod.Name)
		case !keepsAs(found, pod):
			return found, engine.NotYet("pod %s on node %s keeps another address", pod.Name, n.name)
		case !connectivity.Ready(found) || !found.DeletionTimestamp.IsZero():
			return found, engine.NotYet("pod %s on node %s is not ready: %s", pod.Name, n.name, connectivity.Why(found))
		}
		return found, nil
	}
	return &engine.Observed[*corev1.Pod]{
		Name: "hold/" + n.name, About: "Keep the address that node " + n.name + " has in its former range, beside the next one",
		Limit: n.patience(), As: engine.RoleOwn, GoBack: n.goBack, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, found *corev1.Pod) error {
			if found != nil && keepsAs(found, pod) {
				return nil
			}
			if found != nil { // of the way in the other direction, which was broken off
				if err := n.cluster.Delete(ctx, found); client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
				}
				return engine.NotYet("pod %s on node %s is ending", pod.Name, n.name)
			}
			if err := n.cluster.Create(ctx, pod.DeepCopy(), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
				return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "create", Object: "Pod " + pod.Namespace + "/" + pod.Name, Body: pod}),
	}
}

func (n node) holderKey() client.ObjectKey {
	return client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "tunnel-" + n.name}
}

// findHolder returns nil if there is none.
func (n node) findHolder(ctx context.Context) (*corev1.Pod, error) {
	all, err := n.pods(ctx)
	for i := range all {
		if client.ObjectKeyFromObject(&all[i]) == n.holderKey() {
			return &all[i], nil
		}
	}
	return nil, err
}

func keepsAs(have, want *corev1.Pod) bool {
	return len(have.Spec.InitContainers) > 0 && slices.Equal(have.Spec.InitContainers[0].Args, want.Spec.InitContainers[0].Args)
}

// ignore keeps the operator from a CiliumNode. Its agent copies annotations of its Node.
func (n node) ignore() engine.Step {
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readCilium(ctx)
		if err == nil && have.node != nil && !have.restarted(n.ranges) && (have.cilium == nil || !have.cilium.Ignored) {
			err = engine.NotYet("ciliumnode %s has not the annotation %s", n.name, ciliumipam.IgnoreAnnotation)
		}
		return have, err
	}
	return &engine.Observed[ciliumNode]{
		Name: "ignore/" + n.name, About: "Have Cilium's operator not look at CiliumNode " + n.name, As: engine.RoleMove,
		GoBack: n.goBack, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			return cordon.Patch(ctx, n.cluster, have.node, func(found *corev1.Node) {
				metav1.SetMetaDataAnnotation(&found.ObjectMeta, ciliumipam.IgnoreAnnotation, "true")
			})
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: "Node " + n.name, Body: map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{ciliumipam.IgnoreAnnotation: "true"}},
		}}),
	}
}

// lead has agents of other nodes lead both ranges to a node, and names its address in the next one,
// which its agent may take back while it runs.
func (n node) lead() engine.Step {
	former, router := n.former.String(), ciliumipam.Router(nodeipam.Range(n.ranges))
	read := func(ctx context.Context) (ciliumNode, error) {
		have, err := n.readCilium(ctx)
		if err != nil || have.node == nil || have.restarted(n.ranges) {
			return have, err
		}
		if has := have.cilium; has == nil || !n.leads(has) {
			return have, engine.NotYet("ciliumnode %s does not carry %s and %s", n.name, strings.Join(n.ranges, ","), former)
		}
		return have, nil
	}
	return &engine.Observed[ciliumNode]{
		Name: "lead/" + n.name, About: "Have other nodes lead both of its ranges to node " + n.name, As: engine.RoleMove,
		GoBack: n.goBack, Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, have ciliumNode) error {
			if have.cilium == nil || !have.cilium.Ignored {
				return engine.NotYet("Cilium's operator looks at ciliumnode %s", n.name)
			}
			return have.cilium.Lead(ctx, n.cluster, n.own(have.cilium), router, former)
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: "CiliumNode " + n.name, Body: map[string]any{
			"spec": map[string]any{"ipam": n.carrying(former), "addresses": router.String()},
		}}),
	}
}

// letGo ends the pod that keeps the former address, and with it connections that have it.
func (n node) letGo() engine.Step {
	key := n.holderKey()
	read := func(ctx context.Context) (*corev1.Pod, error) {
		found, err := n.findHolder(ctx)
		if err == nil && found != nil {
			err = engine.NotYet("pod %s is still there", key)
		}
		return found, err
	}
	return &engine.Observed[*corev1.Pod]{
		Name: "let-go/" + n.name, About: "Give up the former address of node " + n.name, As: engine.RoleOwn,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, found *corev1.Pod) error {
			if err := n.cluster.Delete(ctx, found); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("pod %s: %w", key, err)
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "Pod " + key.String()}),
	}
}
