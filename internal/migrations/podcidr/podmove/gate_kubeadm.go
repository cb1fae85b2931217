package podmove

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

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/kubeadm"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// kubeadmMoved returns nil if kubeadm's configuration has all ranges, or there is none, and what it
// would write starts.
func kubeadmMoved(ctx context.Context, c *cluster.Cluster, spec Spec, o inventory.Origin) error {
	const name = "configmap " + metav1.NamespaceSystem + "/" + controlplane.KubeadmConfig
	config := &corev1.ConfigMap{}
	err := c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: controlplane.KubeadmConfig}, config)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	has := controlplane.PodSubnet(config)
	if has == "" {
		return nil
	}
	subnets := strings.Split(has, ",")
	for _, r := range spec.To {
		if !slices.ContainsFunc(subnets, func(s string) bool { return covers(s, r) }) {
			return engine.NotYet("networking.podSubnet in %s is %s", name, has)
		}
	}
	nodes, err := Nodes(ctx, c)
	if err != nil {
		return err
	}
	left := firstOutside(nodes, spec.From, subnets)
	if left == "" {
		return nil
	}
	written, err := kubeadm.ReadConfiguration(config.Data["ClusterConfiguration"])
	if err != nil {
		return engine.NotYet("%w", err)
	}
	if allocates, _ := written.Flag(string(controlplane.ControllerManager), "allocate-node-cidrs"); allocates != "false" {
		return engine.NotYet("by %s kubeadm would write a kube-controller-manager with --allocate-node-cidrs=true --cluster-cidr=%s, which does not start: %s",
			name, has, left)
	}
	if o.ClusterAPI {
		return managersDoNotAllocate(ctx, c, name)
	}
	return nil
}

// managersDoNotAllocate holds once controller managers run as the configuration says. Control
// planes of Cluster API put their own into it when they make a machine, so that what people write
// there does not last.
func managersDoNotAllocate(ctx context.Context, c *cluster.Cluster, name string) error {
	pods, err := controlplane.ControllerManager.Pods(ctx, c)
	if err != nil {
		return fmt.Errorf("listing the pods of controller managers: %w", err)
	}
	for _, m := range nodeipam.Managers(pods) {
		if m.Allocates {
			return engine.NotYet("%s still runs with --allocate-node-cidrs=true: the KubeadmControlPlane, which overwrites %s, has to have the flag",
				m.Pod, name)
		}
	}
	return nil
}

// firstOutside names a Node with a range of those that move, outside of all of these.
func firstOutside(nodes []corev1.Node, from []netip.Prefix, ranges []string) string {
	for i := range nodes {
		for _, text := range nodes[i].Spec.PodCIDRs {
			r, err := netip.ParsePrefix(text)
			moves := slices.ContainsFunc(from, func(p netip.Prefix) bool { return p.Overlaps(r) })
			if err == nil && moves && !slices.ContainsFunc(ranges, func(s string) bool { return covers(s, r) }) {
				return fmt.Sprintf("node %s has %s", nodes[i].Name, r)
			}
		}
	}
	return ""
}
