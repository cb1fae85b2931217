package podcidr

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/calico"
)

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

// poolStep adds the pool of a target: like the old one in everything but the range and, if asked for, the size of blocks.
type poolStep struct {
	tools Tools
	spec  Spec
	move  *Move
}

func (s *poolStep) ID() string    { return "add/" + s.move.Name() }
func (s *poolStep) Title() string { return fmt.Sprintf("Add pool %s of %s", s.move.Name(), s.move.To) }

func (s *poolStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *poolStep) Do(ctx context.Context) error {
	u, err := s.build()
	if err != nil {
		return err
	}
	err = s.tools.Cluster.Create(ctx, u, client.FieldOwner(v1alpha1.FieldManager))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("ippool %s: %w", u.GetName(), err)
	}
	return nil
}

// Verify implements engine.Step. A pool of that name that somebody else made of another range is an error for people.
func (s *poolStep) Verify(ctx context.Context) error {
	p, err := readPool(ctx, s.tools.Cluster, s.move.Name())
	switch {
	case err != nil:
		return err
	case p == nil:
		return engine.NotYet("ippool %s does not exist", s.move.Name())
	case p.CIDR != s.move.To:
		return fmt.Errorf("ippool %s is of %s, not of %s", p.Name, p.CIDR, s.move.To)
	case p.Spec.Disabled:
		return fmt.Errorf("ippool %s is disabled: somebody changed it meanwhile", p.Name)
	}
	return nil
}

func (s *poolStep) build() (*unstructured.Unstructured, error) {
	u := calico.Empty("IPPool", s.move.Name())
	u.SetLabels(map[string]string{v1alpha1.LabelMigration: s.spec.Name})
	if s.move.Old == nil {
		return nil, fmt.Errorf("ippool of %s is gone: there is nothing to make %s like", s.move.From, s.move.Name())
	}
	want := s.move.Old.Spec
	want.CIDR, want.Disabled = s.move.To.String(), false
	if s.spec.BlockSize != 0 {
		want.BlockSize = s.spec.BlockSize
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&want)
	if err != nil {
		return nil, err
	}
	return u, unstructured.SetNestedMap(u.Object, fields, "spec")
}

// Preview implements engine.Previewer.
func (s *poolStep) Preview() ([]engine.Change, error) {
	u, err := s.build()
	if err != nil {
		return nil, err
	}
	return []engine.Change{{Verb: "create", Object: "IPPool " + u.GetName(), Body: u.Object}}, nil
}

// switchStep disables a pool, so that no new pod gets an address of it, or enables it again.
type switchStep struct {
	tools   Tools
	name    string
	disable bool
}

func (s *switchStep) ID() string { return s.verb() + "/" + s.name }
func (s *switchStep) Title() string {
	if s.disable {
		return "Disable pool " + s.name + ": pods that have an address of it keep it, new ones get none"
	}
	return "Enable pool " + s.name
}

func (s *switchStep) verb() string {
	if s.disable {
		return "disable"
	}
	return "enable"
}

func (s *switchStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *switchStep) Do(ctx context.Context) error {
	p, err := readPool(ctx, s.tools.Cluster, s.name)
	if err != nil || p == nil {
		return err
	}
	body, err := json.Marshal(s.patch(s.tools.now().UTC().Format(time.RFC3339Nano), p.Object.GetResourceVersion()))
	if err != nil {
		return err
	}
	if err := s.tools.Cluster.Patch(
		ctx,
		p.Object,
		client.RawPatch(types.MergePatchType, body),
		client.FieldOwner(v1alpha1.FieldManager),
	); err != nil {
		return fmt.Errorf("ippool %s: %w", s.name, err)
	}
	return nil
}

// patch carries the version that was looked at: somebody who edits the pool meanwhile is not overwritten.
func (s *switchStep) patch(now, version string) map[string]any {
	metadata := map[string]any{"annotations": map[string]any{v1alpha1.AnnotationDisabledAt: nil}}
	if s.disable {
		metadata["annotations"] = map[string]any{v1alpha1.AnnotationDisabledAt: now}
	}
	if version != "" {
		metadata["resourceVersion"] = version
	}
	return map[string]any{"metadata": metadata, "spec": map[string]any{"disabled": s.disable}}
}

func (s *switchStep) Verify(ctx context.Context) error {
	p, err := readPool(ctx, s.tools.Cluster, s.name)
	switch {
	case err != nil:
		return err
	case p == nil && s.disable:
		return nil
	case p == nil:
		return fmt.Errorf("ippool %s is gone", s.name)
	case p.Spec.Disabled != s.disable:
		return engine.NotYet("ippool %s is not %sd", s.name, s.verb())
	case s.disable && disabledAt(p).IsZero(): // by somebody else: from now on is certain
		return engine.NotYet("since when ippool %s is disabled is not recorded", s.name)
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *switchStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "patch", Object: "IPPool " + s.name, Body: s.patch("the time of the change", "")}}, nil
}

// tunnelStep waits until Calico has given every node's tunnel an address outside the ranges: it does so by itself once a
// pool is disabled (node/pkg/allocateip).
type tunnelStep struct {
	id     string
	tools  Tools
	left   []netip.Prefix
	length time.Duration
}

func (s *tunnelStep) ID() string              { return s.id }
func (*tunnelStep) Title() string             { return "Wait until Calico has moved the tunnels of all nodes" }
func (*tunnelStep) Waits()                    {}
func (s *tunnelStep) Deadline() time.Duration { return s.length }

func (s *tunnelStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }
func (*tunnelStep) Do(context.Context) error                          { return nil }

func (s *tunnelStep) Verify(ctx context.Context) error {
	nodes := &corev1.NodeList{}
	if err := s.tools.Cluster.List(ctx, nodes); err != nil {
		return fmt.Errorf("listing nodes: %w", err)
	}
	if left := (&Survey{Nodes: nodes.Items}).TunnelsIn(s.left); len(left) > 0 {
		return engine.NotYet("the tunnel of node %s has an address of %v", strings.Join(left, ", "), s.left)
	}
	return nil
}

// emptyStep proves that nothing has an address of the ranges: no pod and no tunnel.
type emptyStep struct {
	tools Tools
	left  []netip.Prefix
}

func (*emptyStep) ID() string { return "verify" }
func (s *emptyStep) Title() string {
	return fmt.Sprintf("See that nothing has an address of %v", s.left)
}

func (s *emptyStep) State(ctx context.Context) (engine.State, error) {
	if err := s.Verify(ctx); err != nil {
		return engine.Blocked, err
	}
	return engine.Done, nil
}
func (*emptyStep) Do(context.Context) error { return nil }

func (s *emptyStep) Verify(ctx context.Context) error {
	survey, err := s.tools.occupants(ctx)
	if err != nil {
		return err
	}
	pods := survey.PodsIn(s.left)
	if len(pods) > 0 {
		return fmt.Errorf("%s with addresses of %v, the first is %s/%s",
			english.Plural(len(pods), "pod", ""), s.left, pods[0].Namespace, pods[0].Name)
	}
	if nodes := survey.TunnelsIn(s.left); len(nodes) > 0 {
		return fmt.Errorf("the tunnel of node %s has an address of %v", strings.Join(nodes, ", "), s.left)
	}
	return nil
}

// restartedStep sees that nothing has an old address that could be restarted.
type restartedStep struct {
	tools Tools
	spec  Spec
}

func (s *restartedStep) ID() string { return "verify" }
func (s *restartedStep) Title() string {
	return fmt.Sprintf("See that no workload has a pod with an address of %v", s.spec.From)
}

func (s *restartedStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}
func (*restartedStep) Do(context.Context) error { return nil }

func (s *restartedStep) Verify(ctx context.Context) error {
	survey, err := s.tools.occupants(ctx)
	if err != nil {
		return err
	}
	survey.Spec = s.spec
	if left := survey.restartable(forth, s.tools.now()); len(left) > 0 {
		return engine.NotYet("%s has pods with addresses of %v", left[0], s.spec.From)
	}
	return nil
}

// releaseStep gives back all blocks of a range, and the addresses in them that are given out and used by nothing.
type releaseStep struct {
	tools Tools
	cidr  netip.Prefix
}

func (s *releaseStep) ID() string    { return "release/" + s.cidr.String() }
func (s *releaseStep) Title() string { return fmt.Sprintf("Release the blocks of %s", s.cidr) }

func (s *releaseStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *releaseStep) Do(ctx context.Context) error {
	state, err := calico.Load(ctx, s.tools.Cluster)
	if err != nil {
		return err
	}
	pool := slices.IndexFunc(state.Pools, func(p calico.Pool) bool { return p.CIDR == s.cidr })
	if pool >= 0 && !state.Pools[pool].Spec.Disabled {
		return fmt.Errorf("ippool %s is enabled: nodes would take new blocks of it", state.Pools[pool].Name)
	}
	if !state.Ready {
		return engine.NotYet("the datastore of Calico is locked (ClusterInformation default, datastoreReady)")
	}
	survey, err := s.tools.occupants(ctx) // after the state: an address given out meanwhile is seen as used
	if err != nil {
		return err
	}
	for i := range state.Blocks {
		b := &state.Blocks[i]
		if !s.cidr.Contains(b.CIDR.Addr()) {
			continue
		}
		if err := s.release(ctx, b, survey); err != nil {
			return err
		}
	}
	return s.leftovers(ctx, state)
}

func (s *releaseStep) release(ctx context.Context, b *calico.Block, survey *Survey) error {
	for _, a := range b.Allocations {
		one := []netip.Prefix{netip.PrefixFrom(a.Addr, a.Addr.BitLen())}
		if len(survey.PodsIn(one))+len(survey.TunnelsIn(one)) > 0 {
			return engine.NotYet("%w", &calico.InUseError{Block: b.CIDR, Allocations: []calico.Allocation{a}})
		}
		if err := calico.Free(ctx, s.tools.Cluster, a.Addr, a.Handle); err != nil {
			return err
		}
	}
	err := calico.ReleaseBlock(ctx, s.tools.Cluster, b.CIDR)
	var used *calico.InUseError
	if errors.As(err, &used) {
		return engine.NotYet("%w", err)
	}
	return err
}

// leftovers are affinities for blocks that are gone.
func (s *releaseStep) leftovers(ctx context.Context, state *calico.State) error {
	for i := range state.Affinities {
		a := &state.Affinities[i]
		if s.cidr.Contains(a.CIDR.Addr()) && state.BlockAt(a.CIDR) == nil {
			if err := calico.ReleaseBlock(ctx, s.tools.Cluster, a.CIDR); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *releaseStep) Verify(ctx context.Context) error {
	state, err := calico.Load(ctx, s.tools.Cluster)
	if err != nil {
		return err
	}
	for i := range state.Blocks {
		if b := &state.Blocks[i]; s.cidr.Contains(b.CIDR.Addr()) {
			return engine.NotYet("block %s is still there", b.CIDR)
		}
	}
	for i := range state.Affinities {
		if a := &state.Affinities[i]; s.cidr.Contains(a.CIDR.Addr()) {
			return engine.NotYet("blockaffinity %s is still there", a.Name)
		}
	}
	return nil
}

// removeStep deletes an empty pool.
type removeStep struct {
	tools Tools
	name  string
	cidr  netip.Prefix
}

func (s *removeStep) ID() string    { return "remove/" + s.name }
func (s *removeStep) Title() string { return fmt.Sprintf("Delete pool %s of %s", s.name, s.cidr) }

func (s *removeStep) State(ctx context.Context) (engine.State, error) { return stateOf(s.Verify(ctx)) }

func (s *removeStep) Do(ctx context.Context) error {
	p, err := readPool(ctx, s.tools.Cluster, s.name)
	switch {
	case err != nil || p == nil:
		return err
	case p.CIDR != s.cidr:
		return fmt.Errorf("ippool %s is of %s, not of %s: somebody made another one of that name", s.name, p.CIDR, s.cidr)
	case !p.Spec.Disabled:
		return fmt.Errorf("ippool %s is enabled: somebody changed it meanwhile", s.name)
	}
	err = s.tools.Cluster.Delete(ctx, p.Object, client.Preconditions{
		UID: ptr.To(p.Object.GetUID()), ResourceVersion: ptr.To(p.Object.GetResourceVersion()),
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ippool %s: %w", s.name, err)
	}
	return nil
}

func (s *removeStep) Verify(ctx context.Context) error {
	p, err := readPool(ctx, s.tools.Cluster, s.name)
	if err == nil && p != nil {
		return engine.NotYet("ippool %s is still there", s.name)
	}
	return err
}

// Preview implements engine.Previewer.
func (s *removeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: "IPPool " + s.name}}, nil
}

// stateOf makes the State of a step from its Verify.
func stateOf(err error) (engine.State, error) {
	switch {
	case err == nil:
		return engine.Done, nil
	case engine.Retryable(err):
		return engine.Pending, nil
	}
	return engine.Unknown, err
}
