package pools

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/verify/connectivity"
)

// tunnelsLabel says which addresses of tunnels a DaemonSet keeps, keptOld or keptNew.
const (
	tunnelsLabel     = podmove.TunnelsLabel
	keptOld, keptNew = "old", "new"
)

// keeperDeadline is how long the image may take to come to every node.
const keeperDeadline = 5 * time.Minute

type tunnelKeeper struct {
	migration string
	image     pull.Image
	// which is keptOld or keptNew, ranges what the addresses are of.
	which  string
	ranges []netip.Prefix
}

func (k *tunnelKeeper) name() string { return k.migration + "-" + k.which + "-tunnels" }

func (k *tunnelKeeper) labels() client.MatchingLabels {
	return client.MatchingLabels{v1alpha1.LabelMigration: k.migration, tunnelsLabel: k.which}
}

func (k *tunnelKeeper) start(c *cluster.Cluster) *engine.Write {
	return createOnNodes(c, "hold/"+k.which, fmt.Sprintf("Keep the addresses of tunnels in %v on their nodes", k.ranges), k.build())
}

// createOnNodes creates a DaemonSet and waits for its pods on every ready node.
func createOnNodes(c *cluster.Cluster, id, about string, d *appsv1.DaemonSet) *engine.Write {
	return &engine.Write{
		Name: id, About: about, Limit: keeperDeadline, As: engine.RoleOwn,
		Holds: func(ctx context.Context) error { return onEveryNode(ctx, c, d.Name, d.Labels) },
		Write: func(ctx context.Context) error {
			err := c.Create(ctx, d.DeepCopy(), client.FieldOwner(v1alpha1.FieldManager))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("daemonset %s: %w", d.Name, err)
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "create", Object: "DaemonSet " + d.Namespace + "/" + d.Name, Body: d}),
	}
}

// onNodes is a DaemonSet in the network of nodes.
func onNodes(name string, labels map[string]string, image pull.Image, first, main corev1.Container) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: name, Labels: labels},
		Spec: appsv1.DaemonSetSpec{
			Selector:       &metav1.LabelSelector{MatchLabels: labels},
			UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       podmove.OnHost(image, first, main),
			},
		},
	}
}

// onEveryNode returns nil if a pod of a DaemonSet is ready on every node that is ready.
func onEveryNode(ctx context.Context, c *cluster.Cluster, name string, labels client.MatchingLabels) error {
	nodes, err := podmove.Nodes(ctx, c)
	if err != nil {
		return err
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, client.InNamespace(v1alpha1.SystemNamespace), labels); err != nil {
		return fmt.Errorf("listing pods of %s: %w", name, err)
	}
	on := map[string]*corev1.Pod{}
	for i := range pods.Items {
		if p := &pods.Items[i]; p.DeletionTimestamp.IsZero() {
			on[p.Spec.NodeName] = p
		}
	}
	for i := range nodes {
		n := &nodes[i]
		switch pod := on[n.Name]; {
		case !inventory.NodeReady(n):
		case pod == nil:
			return engine.NotYet("node %s has no pod of DaemonSet %s/%s", n.Name, v1alpha1.SystemNamespace, name)
		case !connectivity.Ready(pod):
			return engine.NotYet("pod %s on node %s is not ready: %s", pod.Name, n.Name, connectivity.Why(pod))
		}
	}
	return nil
}

func (k *tunnelKeeper) container(name string) corev1.Container {
	args := []string{"tunnels", name}
	for _, r := range k.ranges {
		args = append(args, r.String())
	}
	return podmove.NetAdmin(name, k.image, args)
}

// build makes a DaemonSet whose pods are ready with the addresses, and remove them at their end.
func (k *tunnelKeeper) build() *appsv1.DaemonSet {
	return onNodes(k.name(), k.labels(), k.image, k.container("hold"), k.container("keep"))
}

// releaseTunnels removes the kept addresses of tunnels. Connections that use them end.
func releaseTunnels(c *cluster.Cluster, migration string) *engine.Write {
	names := func() []string {
		return []string{
			(&tunnelKeeper{migration: migration, which: keptOld}).name(),
			(&tunnelKeeper{migration: migration, which: keptNew}).name(),
		}
	}
	return &engine.Write{
		Name: "let-go", About: "Remove old addresses of tunnels from their nodes", As: engine.RoleOwn,
		Holds: func(ctx context.Context) error { return noKeepers(ctx, c, migration) },
		Write: func(ctx context.Context) error {
			for _, name := range names() {
				d := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: name}}
				err := c.Delete(ctx, d, client.PropagationPolicy(metav1.DeletePropagationForeground))
				if client.IgnoreNotFound(err) != nil {
					return fmt.Errorf("daemonset %s: %w", name, err)
				}
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			var all []engine.Change
			for _, name := range names() {
				all = append(all, engine.Change{Verb: "delete", Object: "DaemonSet " + v1alpha1.SystemNamespace + "/" + name})
			}
			return all, nil
		},
	}
}

func noKeepers(ctx context.Context, c *cluster.Cluster, migration string) error {
	return noneLeft(ctx, c, []client.ListOption{
		client.InNamespace(v1alpha1.SystemNamespace),
		client.HasLabels{tunnelsLabel},
		client.MatchingLabels{v1alpha1.LabelMigration: migration},
	})
}

// noneLeft returns nil if no DaemonSet and no pod is found so.
func noneLeft(ctx context.Context, c *cluster.Cluster, ours []client.ListOption) error {
	sets := &appsv1.DaemonSetList{}
	if err := c.List(ctx, sets, ours...); err != nil {
		return fmt.Errorf("listing daemonsets: %w", err)
	}
	if len(sets.Items) > 0 {
		return engine.NotYet("daemonset %s is still there", sets.Items[0].Name)
	}
	pods := &corev1.PodList{}
	if err := c.List(ctx, pods, ours...); err != nil {
		return fmt.Errorf("listing pods: %w", err)
	}
	if len(pods.Items) > 0 {
		return engine.NotYet("pod %s on node %s is still there", pods.Items[0].Name, pods.Items[0].Spec.NodeName)
	}
	return nil
}

// tunnelAddresses are those of nodes' tunnels in some ranges, each as a range of its own.
func tunnelAddresses(nodes []corev1.Node, ranges []netip.Prefix) []string {
	var all []string
	for i := range nodes {
		for _, a := range calico.TunnelAddresses(&nodes[i]) {
			if podmove.Within(ranges, a) {
				all = append(all, netip.PrefixFrom(a, a.BitLen()).String())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func reservation(migration string) *unstructured.Unstructured {
	return calico.Empty("IPReservation", "replumb-"+migration)
}

type reserved struct {
	// have is nil if there is no reservation.
	have   *unstructured.Unstructured
	wanted []string
}

// reserveTunnels keeps Calico from giving kept tunnel addresses to pods. now are those of the plan.
func reserveTunnels(c *cluster.Cluster, migration string, ranges []netip.Prefix, now []string) engine.Step {
	read := func(ctx context.Context) (reserved, error) { return readReserved(ctx, c, migration, ranges) }
	return &engine.Observed[reserved]{
		Name: "hold/reserve", About: fmt.Sprintf("Reserve the addresses of tunnels in %v", ranges),
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, r reserved) error { return r.write(ctx, c, migration) },
		Changes: engine.Shows(engine.Change{
			Verb: "create", Object: "IPReservation " + reservation(migration).GetName(),
			Body: map[string]any{"spec": map[string]any{"reservedCIDRs": now}},
		}),
	}
}

func readReserved(ctx context.Context, c *cluster.Cluster, migration string, ranges []netip.Prefix) (r reserved, err error) {
	nodes, err := podmove.Nodes(ctx, c)
	if err != nil {
		return r, err
	}
	r.wanted = tunnelAddresses(nodes, ranges)
	u := reservation(migration)
	err = c.Get(ctx, client.ObjectKeyFromObject(u), u)
	switch {
	case apierrors.IsNotFound(err):
		return r, engine.NotYet("ipreservation %s does not exist", reservation(migration).GetName())
	case err != nil:
		return r, fmt.Errorf("ipreservation %s: %w", reservation(migration).GetName(), err)
	}
	listed, _, err := unstructured.NestedStringSlice(u.Object, "spec", "reservedCIDRs")
	if err != nil {
		return r, fmt.Errorf("ipreservation %s: %w", u.GetName(), err)
	}
	missing := slices.DeleteFunc(slices.Clone(r.wanted), func(text string) bool { return slices.Contains(listed, text) })
	r.have, r.wanted = u, append(r.wanted, listed...)
	if len(missing) > 0 {
		return r, engine.NotYet("ipreservation %s does not list %s", u.GetName(), strings.Join(missing, ", "))
	}
	return r, nil
}

func (r *reserved) write(ctx context.Context, c *cluster.Cluster, migration string) error {
	u := reservation(migration)
	u.SetLabels(map[string]string{v1alpha1.LabelMigration: migration})
	wanted := slices.Clone(r.wanted)
	slices.Sort(wanted)
	err := unstructured.SetNestedStringSlice(u.Object, slices.Compact(wanted), "spec", "reservedCIDRs")
	if err != nil {
		return err
	}
	if r.have == nil {
		err = c.Create(ctx, u, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		var body []byte
		if body, err = json.Marshal(map[string]any{"spec": u.Object["spec"]}); err != nil {
			return err
		}
		err = c.Patch(ctx, r.have, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("ipreservation %s: %w", u.GetName(), err)
	}
	return nil
}

func unreserveTunnels(c *cluster.Cluster, migration string) *engine.Write {
	name := reservation(migration).GetName()
	return &engine.Write{
		Name: "unreserve", About: "Remove the reservation of tunnels' addresses",
		Holds: func(ctx context.Context) error {
			u := reservation(migration)
			err := c.Get(ctx, client.ObjectKeyFromObject(u), u)
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err != nil:
				return fmt.Errorf("ipreservation %s: %w", name, err)
			}
			return engine.NotYet("ipreservation %s is still there", name)
		},
		Write: func(ctx context.Context) error {
			if err := c.Delete(ctx, reservation(migration)); client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("ipreservation %s: %w", name, err)
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "IPReservation " + name}),
	}
}
