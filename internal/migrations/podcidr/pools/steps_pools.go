package pools

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/podcidr/podmove"
	"github.com/replumb/replumb/internal/network/calico"
)

// tunnelWait is how long Calico may take to move the tunnels of all nodes.
const tunnelWait = 5 * time.Minute

// readPool reads a pool as it is now; nil, if there is none.
func readPool(ctx context.Context, c client.Client, name string) (*calico.Pool, error) {
	u := calico.Empty("IPPool", name)
	if err := c.Get(ctx, client.ObjectKey{Name: name}, u); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("ippool %s: %w", name, err)
	}
	p, err := calico.ReadPool(u)
	if err != nil {
		return nil, fmt.Errorf("ippool %s: %w", name, err)
	}
	return &p, nil
}

// addPool adds a pool like the old one, but for range and size of blocks.
func addPool(c *cluster.Cluster, s podmove.Spec, m *PoolMove) *engine.Write {
	return &engine.Write{
		Name: "add/" + m.Name(), About: fmt.Sprintf("Add pool %s of %s", m.Name(), m.To),
		Holds: func(ctx context.Context) error { return added(ctx, c, m) },
		Write: func(ctx context.Context) error {
			u, err := targetPool(s, m)
			if err != nil {
				return err
			}
			err = c.Create(ctx, u, client.FieldOwner(v1alpha1.FieldManager))
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("ippool %s: %w", u.GetName(), err)
			}
			return nil
		},
		Changes: func() ([]engine.Change, error) {
			u, err := targetPool(s, m)
			if err != nil {
				return nil, err
			}
			return []engine.Change{{Verb: "create", Object: "IPPool " + u.GetName(), Body: u.Object}}, nil
		},
	}
}

// added returns nil if the target's pool is there. A foreign pool of that name is an error.
func added(ctx context.Context, c *cluster.Cluster, m *PoolMove) error {
	p, err := readPool(ctx, c, m.Name())
	switch {
	case err != nil:
		return err
	case p == nil:
		return engine.NotYet("ippool %s does not exist", m.Name())
	case p.CIDR != m.To:
		return fmt.Errorf("ippool %s is of %s, not of %s", p.Name, p.CIDR, m.To)
	case p.Spec.Disabled:
		return fmt.Errorf("ippool %s is disabled: it was changed meanwhile", p.Name)
	}
	return nil
}

// targetPool is the pool that a target gets.
func targetPool(s podmove.Spec, m *PoolMove) (*unstructured.Unstructured, error) {
	u := calico.Empty("IPPool", m.Name())
	u.SetLabels(map[string]string{v1alpha1.LabelMigration: s.Name})
	if m.Old == nil {
		return nil, fmt.Errorf("ippool of %s is gone: there is nothing to make %s like", m.From, m.Name())
	}
	want := m.Old.Spec
	want.CIDR, want.Disabled = m.To.String(), false
	if s.BlockSize != 0 {
		want.BlockSize = s.BlockSize
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
	if err != nil {
		return nil, err
	}
	return u, unstructured.SetNestedMap(u.Object, fields, "spec")
}

// disablePool has pods get no more addresses of a pool, and notes when: older ones may have one.
func disablePool(tools migration.Deps, name string) engine.Step {
	read := func(ctx context.Context) (*calico.Pool, error) {
		p, err := readPool(ctx, tools.Cluster, name)
		switch {
		case err != nil || p == nil:
			return nil, err
		case !p.Spec.Disabled:
			return p, engine.NotYet("ippool %s is not disabled", name)
		case disabledAt(p).IsZero(): // not by replumb: from now on is certain
			return p, engine.NotYet("since when ippool %s is disabled is not recorded", name)
		}
		return p, nil
	}
	return &engine.Observed[*calico.Pool]{
		Name: "disable/" + name, About: "Disable pool " + name + ": pods that have an address of it keep it, new ones get none",
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, p *calico.Pool) error {
			return patchPool(ctx, tools.Cluster, p, poolPatch(true, tools.Now().UTC().Format(time.RFC3339Nano)))
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: "IPPool " + name, Body: poolPatch(true, "the time of the change")}),
	}
}

func enablePool(tools migration.Deps, name string) engine.Step {
	read := func(ctx context.Context) (*calico.Pool, error) {
		p, err := readPool(ctx, tools.Cluster, name)
		switch {
		case err != nil:
			return nil, err
		case p == nil:
			return nil, fmt.Errorf("ippool %s is gone", name)
		case p.Spec.Disabled:
			return p, engine.NotYet("ippool %s is not enabled", name)
		}
		return p, nil
	}
	return &engine.Observed[*calico.Pool]{
		Name: "enable/" + name, About: "Enable pool " + name,
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, p *calico.Pool) error {
			return patchPool(ctx, tools.Cluster, p, poolPatch(false, nil))
		},
		Changes: engine.Shows(engine.Change{Verb: "patch", Object: "IPPool " + name, Body: poolPatch(false, nil)}),
	}
}

// poolPatch disables or enables a pool. since is when it was disabled; nil takes that note off.
func poolPatch(disable bool, since any) map[string]any {
	return map[string]any{
		"metadata": map[string]any{"annotations": map[string]any{v1alpha1.AnnotationDisabledAt: since}},
		"spec":     map[string]any{"disabled": disable},
	}
}

// patchPool carries the version that was looked at: what was edited meanwhile is not overwritten.
func patchPool(ctx context.Context, c *cluster.Cluster, p *calico.Pool, patch map[string]any) error {
	patch["metadata"].(map[string]any)["resourceVersion"] = p.Object.GetResourceVersion()
	body, err := json.Marshal(patch)
	if err != nil {
		return err
	}
	err = c.Patch(ctx, p.Object, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	if err != nil {
		return fmt.Errorf("ippool %s: %w", p.Name, err)
	}
	return nil
}

func removePool(c *cluster.Cluster, name string, cidr netip.Prefix) engine.Step {
	read := func(ctx context.Context) (*calico.Pool, error) {
		p, err := readPool(ctx, c, name)
		switch {
		case err != nil || p == nil:
			return nil, err
		case p.CIDR != cidr:
			return nil, fmt.Errorf("ippool %s is of %s, not of %s: it is another one of that name", name, p.CIDR, cidr)
		case !p.Spec.Disabled:
			return nil, fmt.Errorf("ippool %s is enabled: it was changed meanwhile", name)
		}
		return p, engine.NotYet("ippool %s is still there", name)
	}
	return &engine.Observed[*calico.Pool]{
		Name: "remove/" + name, About: fmt.Sprintf("Delete pool %s of %s", name, cidr),
		Look: engine.LookOf(read), Proof: engine.ProofOf(read),
		Write: func(ctx context.Context, p *calico.Pool) error {
			err := c.Delete(ctx, p.Object, client.Preconditions{
				UID: ptr.To(p.Object.GetUID()), ResourceVersion: ptr.To(p.Object.GetResourceVersion()),
			})
			if client.IgnoreNotFound(err) != nil {
				return fmt.Errorf("ippool %s: %w", name, err)
			}
			return nil
		},
		Changes: engine.Shows(engine.Change{Verb: "delete", Object: "IPPool " + name}),
	}
}

// tunnelsMoved waits until Calico has moved all tunnels of disabled pools (node/pkg/allocateip).
func tunnelsMoved(c *cluster.Cluster, id string, left []netip.Prefix) *engine.Wait {
	return &engine.Wait{
		Name: id, About: "Wait until Calico has moved the tunnels of all nodes", Limit: tunnelWait,
		For: func(ctx context.Context) error {
			nodes, err := podmove.Nodes(ctx, c)
			if err != nil {
				return err
			}
			if old := (&podmove.Inventory{Nodes: nodes}).TunnelsIn(left); len(old) > 0 {
				return engine.NotYet("the tunnel of node %s has an address of %v", strings.Join(old, ", "), left)
			}
			return nil
		},
	}
}
