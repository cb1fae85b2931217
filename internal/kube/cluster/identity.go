package cluster

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
)

// Identity needs the right to get namespace kube-system, whose UID it has.
func (c *Cluster) Identity(ctx context.Context) (engine.Identity, error) {
	ns := &corev1.Namespace{}
	if err := c.Get(ctx, client.ObjectKey{Name: metav1.NamespaceSystem}, ns); err != nil {
		return c.Known(), fmt.Errorf("namespace %s, by which clusters are distinguished: %w", metav1.NamespaceSystem, err)
	}
	known := c.Known()
	known.UID = string(ns.UID)
	return known, nil
}

// Known is the part of the Identity that needs no request.
func (c *Cluster) Known() engine.Identity {
	return engine.Identity{Server: c.Host(), Context: c.ContextName}
}

// Describe is a line for users who are about to change the cluster.
func (c *Cluster) Describe(ctx context.Context) (string, error) {
	version, err := c.ServerVersion(ctx)
	if err != nil {
		return "", err
	}
	nodes := &corev1.NodeList{}
	count := "nodes not listed: no right to"
	switch err := c.List(ctx, nodes, client.Limit(1)); {
	case err == nil:
		number := int64(len(nodes.Items)) + ptr.Deref(nodes.RemainingItemCount, 0)
		if count = fmt.Sprintf("%d nodes", number); number == 1 {
			count = "1 node"
		}
	case !apierrors.IsForbidden(err):
		return "", fmt.Errorf("listing nodes: %w", err)
	}
	return fmt.Sprintf("context %s, server %s, %s, Kubernetes %s",
		cmp.Or(c.ContextName, "(none)"), c.Host(), count, version.GitVersion), nil
}
