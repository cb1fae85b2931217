// Package used reads a cluster's address ranges, and which objects have them.
package used

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/serviceranges"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/network/ranges"
)

// ClusterRanges is what was read of one.
type ClusterRanges struct {
	// Name is that of its context, or else its server's.
	Name   string
	Server string
	// Seed is what tells it from other clusters, and stays.
	Seed   string
	Ranges []ranges.Range
	// NotRead is what may have ranges that are not known, a line each.
	NotRead []string
	// Tailscale are the workloads that run it.
	Tailscale []string
}

// Rights are what Read needs. Without one of them, the Cluster says what it has not read.
func Rights() []access.Right {
	return slices.Concat(
		access.Grant(networkingv1.GroupName, "servicecidrs", "", "list"),
		access.Grant("", "nodes", "", "list"), access.Grant("", "pods", "", "list"),
		access.Grant("", "configmaps", "", "list"),
		access.Grant(calico.GroupVersion().Group, "ippools", "", "list"), CiliumRights(),
		access.Grant(v1alpha1.GroupVersion.Group, "migrations", "", "list"),
	)
}

// CiliumRights are those that no migration needs.
func CiliumRights() []access.Right { return access.Grant(ciliumGroup, ciliumPools, "", "list") }

type part struct {
	group, version, resource string
	read                     func(context.Context) error
}

func (p part) String() string {
	if p.group == "" {
		return p.resource
	}
	return p.resource + "." + p.group
}

func (r *reader) sources() []part {
	calicoGroup := calico.GroupVersion()
	return []part{
		{networkingv1.GroupName, "v1", "servicecidrs", r.readServices},
		{"", "v1", "nodes", r.readNodes},
		{calicoGroup.Group, calicoGroup.Version, "ippools", r.readPools},
		{ciliumGroup, "v2alpha1", ciliumPools, r.readCilium},
		{"", "v1", "configmaps", r.readConfigMaps},
		{"", "v1", "pods", r.readPods},
		{v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version, "migrations", r.readMigrations},
	}
}

// Read reads a cluster's ranges. It names what the user may not read, and fails without an answer.
func Read(ctx context.Context, c *cluster.Cluster) (*ClusterRanges, error) {
	if _, err := c.ServerVersion(ctx); err != nil {
		return nil, err
	}
	r := &reader{cluster: c, out: &ClusterRanges{}}
	for _, p := range r.sources() {
		if err := r.classify(ctx, p, p.read(ctx)); err != nil {
			return nil, err
		}
	}
	r.out.Server, r.out.Name = c.Host(), cmp.Or(c.ContextName, c.Host())
	r.out.Seed = r.out.Server
	if of, err := c.Identity(ctx); err == nil { // without the right to ask, its server tells it from others
		r.out.Seed = of.UID
	}
	return r.finish(), nil
}

// classify turns errors of reading a part into notes: absent resources have no ranges, and
// unreadable ones may have some.
func (r *reader) classify(ctx context.Context, p part, err error) error {
	var unknown *serviceranges.UnknownRangeError
	switch {
	case errors.As(err, &unknown): // which is one of those that are not found
		r.notRead("%s: %v", p, err)
		return nil
	case err == nil, apierrors.IsNotFound(err), meta.IsNoMatchError(err), errors.Is(err, calico.ErrAbsent):
		return nil
	case apierrors.IsForbidden(err):
		if served, err := r.serves(ctx, p); err != nil || !served {
			return err
		}
		r.notRead("%s: the user has no right to list them", p)
		return nil
	}
	return err
}

// serves reports whether a cluster has a resource. API servers refuse users without a right either
// way, but tell everyone which groups there are.
func (r *reader) serves(ctx context.Context, p part) (bool, error) {
	if p.group == "" {
		return true, nil
	}
	_, err := r.cluster.GetRaw(ctx, fmt.Sprintf("/apis/%s/%s", p.group, p.version))
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if apierrors.IsForbidden(err) { // who may not even ask
		return true, nil
	}
	return true, err
}
