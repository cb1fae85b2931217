package podcidr

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/calico"
)

// reserveStep keeps Calico from giving to pods what nodes go on having, should the old pools be enabled again.
type reserveStep struct {
	tools     Tools
	migration string
	ranges    []netip.Prefix
	// now is what has to be reserved as the plan is made: until the step runs, nodes may come.
	now []string
}

// tunnelsAs are the addresses of nodes' tunnels in some ranges, each as a range of its own.
func tunnelsAs(nodes []corev1.Node, ranges []netip.Prefix) []string {
	var all []string
	for i := range nodes {
		for _, a := range calico.TunnelAddresses(&nodes[i]) {
			if within(ranges, a) {
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

func (*reserveStep) ID() string { return "hold/reserve" }
func (s *reserveStep) Title() string {
	return fmt.Sprintf("Reserve the addresses of tunnels in %v", s.ranges)
}

func (s *reserveStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *reserveStep) Do(ctx context.Context) error {
	have, wanted, err := s.look(ctx)
	if err != nil {
		return err
	}
	u := reservation(s.migration)
	u.SetLabels(map[string]string{v1alpha1.LabelMigration: s.migration})
	if err := unstructured.SetNestedStringSlice(u.Object, wanted, "spec", "reservedCIDRs"); err != nil {
		return err
	}
	if have == nil {
		err = s.tools.Cluster.Create(ctx, u, client.FieldOwner(v1alpha1.FieldManager))
	} else {
		var body []byte
		if body, err = json.Marshal(map[string]any{"spec": u.Object["spec"]}); err != nil {
			return err
		}
		err = s.tools.Cluster.Patch(ctx, have, client.RawPatch(types.MergePatchType, body), client.FieldOwner(v1alpha1.FieldManager))
	}
	if err != nil {
		return fmt.Errorf("ipreservation %s: %w", u.GetName(), err)
	}
	return nil
}

// look returns the reservation, nil if there is none, and what it has to list.
func (s *reserveStep) look(ctx context.Context) (have *unstructured.Unstructured, wanted []string, err error) {
	nodes := &corev1.NodeList{}
	if err := s.tools.Cluster.List(ctx, nodes); err != nil {
		return nil, nil, fmt.Errorf("listing nodes: %w", err)
	}
	wanted = tunnelsAs(nodes.Items, s.ranges)
	have = reservation(s.migration)
	switch err := s.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(have), have); {
	case apierrors.IsNotFound(err):
		have = nil
	case err != nil:
		return nil, nil, fmt.Errorf("ipreservation %s: %w", reservation(s.migration).GetName(), err)
	default:
		already, _, err := unstructured.NestedStringSlice(have.Object, "spec", "reservedCIDRs")
		if err != nil {
			return nil, nil, fmt.Errorf("ipreservation %s: %w", have.GetName(), err)
		}
		wanted = append(wanted, already...)
	}
	slices.Sort(wanted)
	return have, slices.Compact(wanted), nil
}

func (s *reserveStep) Verify(ctx context.Context) error {
	have, wanted, err := s.look(ctx)
	if err != nil {
		return err
	}
	if have == nil {
		return engine.NotYet("ipreservation %s does not exist", reservation(s.migration).GetName())
	}
	listed, _, err := unstructured.NestedStringSlice(have.Object, "spec", "reservedCIDRs")
	if err != nil {
		return fmt.Errorf("ipreservation %s: %w", have.GetName(), err)
	}
	missing := slices.DeleteFunc(wanted, func(text string) bool { return slices.Contains(listed, text) })
	if len(missing) > 0 {
		return engine.NotYet("ipreservation %s does not list %s", have.GetName(), strings.Join(missing, ", "))
	}
	return nil
}

// Preview implements engine.Previewer.
func (s *reserveStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{
		Verb: "create", Object: "IPReservation " + reservation(s.migration).GetName(),
		Body: map[string]any{"spec": map[string]any{"reservedCIDRs": s.now}},
	}}, nil
}

// unreserveStep removes the reservation.
type unreserveStep struct {
	tools     Tools
	migration string
}

func (*unreserveStep) ID() string    { return "unreserve" }
func (*unreserveStep) Title() string { return "Give up the reservation of tunnels' addresses" }

func (s *unreserveStep) State(ctx context.Context) (engine.State, error) {
	return stateOf(s.Verify(ctx))
}

func (s *unreserveStep) Do(ctx context.Context) error {
	if err := s.tools.Cluster.Delete(ctx, reservation(s.migration)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("ipreservation %s: %w", reservation(s.migration).GetName(), err)
	}
	return nil
}

func (s *unreserveStep) Verify(ctx context.Context) error {
	u := reservation(s.migration)
	err := s.tools.Cluster.Get(ctx, client.ObjectKeyFromObject(u), u)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("ipreservation %s: %w", u.GetName(), err)
	}
	return engine.NotYet("ipreservation %s is still there", u.GetName())
}

// Preview implements engine.Previewer.
func (s *unreserveStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: "IPReservation " + reservation(s.migration).GetName()}}, nil
}
