package noderanges

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/nodeipam"
)

// Load surveys a cluster without pools.
func Load(ctx context.Context, c *cluster.Cluster, shared *podmove.Inventory) (*Inventory, error) {
	var from Sources
	var err error
	if from.Saved, err = saved(c, shared.Spec.Name).List(ctx); err != nil {
		return nil, err
	}
	if from.Configured, err = configured(ctx, c); err != nil {
		return nil, err
	}
	if from.Cilium, err = loadCilium(ctx, c, shared); err != nil {
		return nil, err
	}
	found, err := New(shared, from)
	if err != nil || found.pooled() || shared.Spec.Nodes.Gates != v1alpha1.GatesKubeadm { // no gate comes
		return found, err
	}
	found.Kubeadm, err = kubeadmgate.Load(ctx, c)
	return found, err
}

// saved are the Nodes kept while they are recreated.
func saved(c *cluster.Cluster, migration string) nodeipam.SavedNodes {
	return nodeipam.SavedNodes{Client: c, Migration: migration}
}

// configured is the range in a controller manager's command line or kubeadm's configuration.
func configured(ctx context.Context, c *cluster.Cluster) (netip.Prefix, error) {
	managers, err := managers(ctx, c)
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, m := range managers {
		if p := nodeipam.Range(strings.Split(m.ClusterCIDR, ",")); p.IsValid() {
			return p, nil
		}
	}
	config := &corev1.ConfigMap{}
	err = c.Get(ctx, client.ObjectKey{Namespace: metav1.NamespaceSystem, Name: controlplane.KubeadmConfig}, config)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return netip.Prefix{}, nil
	}
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("configmap kube-system/kubeadm-config: %w", err)
	}
	return nodeipam.Range(strings.Split(controlplane.PodSubnet(config), ",")), nil
}

// managers are the controller managers whose command line can be seen.
func managers(ctx context.Context, c *cluster.Cluster) ([]nodeipam.Manager, error) {
	pods, err := controlplane.ControllerManager.Pods(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("listing the pods of controller managers: %w", err)
	}
	return nodeipam.Managers(pods), nil
}
