package servicecidr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/network/cidr"
)

// retiredRange is a ServiceCIDR that the migration did not make and that it retires.
type retiredRange struct {
	client client.Client
	name   string
	cidrs  []netip.Prefix
	// leaves are those of cidrs that are retired: all, but for one of the other family.
	leaves []netip.Prefix
	// kept are the ranges in which pinned Services stay.
	kept []netip.Prefix
	// immovable names what has an address in the range now and neither moves nor is pinned.
	immovable func(context.Context) ([]string, error)
}

// get returns nil if the range is gone, or another has its name.
func (r retiredRange) get(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	have, err := serviceCIDR(ctx, r.client, r.name)
	if err != nil || have == nil || !slices.Equal(cidrsOf(have), r.cidrs) {
		return nil, err
	}
	return have, nil
}

// vacant waits for nothing: it fails if the range cannot be retired, before operators are asked to give it up. Services that have
// appeared in it and move are no reason: as long as it is open there may always be one.
func (r retiredRange) vacant() engine.Step {
	return &engine.Wait{
		Name: "vacant/" + r.name, About: "Verify that the Service range is empty: " + joinRanges(r.leaves),
		For: func(ctx context.Context) error {
			have, err := r.get(ctx)
			if err != nil || have == nil {
				return err
			}
			return r.empties(ctx)
		},
	}
}

// empties returns a RangeInUseError if something stays in the range.
func (r retiredRange) empties(ctx context.Context) error {
	holders, err := r.immovable(ctx)
	if err == nil && len(holders) > 0 {
		return &RangeInUseError{Name: r.name, Holders: holders}
	}
	return err
}

// retire deletes the range if nothing stays in it. From then on the API server gives no address out of it, so that those who have one
// come to an end: a RangeInUseError names them, and they move in another round. A hop out of a range that goes works as from any other.
func (r retiredRange) retire() engine.Step {
	return &engine.Observed[*networkingv1.ServiceCIDR]{
		Name: "retire/" + r.name, About: "Retire the Service range " + joinRanges(r.leaves),
		Look: func(ctx context.Context) (engine.State, *networkingv1.ServiceCIDR, error) {
			have, err := r.get(ctx)
			switch {
			case err != nil:
				return engine.Unknown, nil, err
			case have == nil:
				return engine.Done, nil, nil
			}
			return engine.Pending, have, nil
		},
		Write: func(ctx context.Context, have *networkingv1.ServiceCIDR) error {
			if !have.DeletionTimestamp.IsZero() {
				return nil
			}
			if err := r.empties(ctx); err != nil {
				return err
			}
			return deleteRange(ctx, r.client, have)
		},
		Proof: func(ctx context.Context) error {
			have, err := r.get(ctx)
			if err != nil || have == nil {
				return err
			}
			holders, err := holders(ctx, r.client, r.leaves, r.kept)
			if err == nil && len(holders) > 0 {
				return r.inUse(ctx, holders)
			}
			return stillThere(ctx, r.client, r.name, r.leaves, r.kept)
		},
		Changes: deletion("ServiceCIDR " + r.name),
	}
}

// inUse is a RangeInUseError, or one that passes by itself: what is in a namespace that is being removed does not move, and goes.
func (r retiredRange) inUse(ctx context.Context, holders []string) error {
	inUse := &RangeInUseError{Name: r.name, Holders: holders}
	services, err := cluster.List[corev1.Service](ctx, r.client, &corev1.ServiceList{})
	if err != nil {
		return err
	}
	ending, err := endingNamespaces(ctx, r.client)
	if err != nil {
		return err
	}
	for i := range services {
		s := &services[i]
		at := among(addressesOf(s), r.leaves)
		if at.IsValid() && !cidr.Contains(r.kept, at) && !ending[s.Namespace] {
			return inUse
		}
	}
	return engine.NotYet("%w, which are gone or being removed with their namespaces", inUse)
}

// endingNamespaces are those that are being removed.
func endingNamespaces(ctx context.Context, c client.Client) (map[string]bool, error) {
	all, err := cluster.List[corev1.Namespace](ctx, c, &corev1.NamespaceList{})
	if err != nil {
		return nil, err
	}
	ending := map[string]bool{}
	for i := range all {
		if !all[i].DeletionTimestamp.IsZero() {
			ending[all[i].Name] = true
		}
	}
	return ending, nil
}

// immovable looks at the Services again.
func (r *rangePlan) immovable(cidrs []netip.Prefix) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		now, err := r.lookAgain(ctx)
		if err != nil {
			return nil, err
		}
		return now.immovable(cidrs), nil
	}
}

// immovable are the Services that have an address in some ranges and neither move nor are pinned.
func (s *Survey) immovable(in []netip.Prefix) (names []string) {
	for _, e := range s.Blockers() {
		if e.Reason.Kind == Refused && cidr.Contains(in, e.Old) {
			names = append(names, fmt.Sprintf("services %s (%s), which %s", e.Key(), e.Old, e.Reason))
		}
	}
	return names
}

// lookAgain surveys the Services as they are now.
func (r *rangePlan) lookAgain(ctx context.Context) (_ *Survey, err error) {
	snap := &cluster.Snapshot{}
	if snap.ServiceCIDRs, err = serviceCIDRs(ctx, r.client); err != nil {
		return nil, err
	}
	if snap.IPAddresses, err = cluster.List[networkingv1.IPAddress](ctx, r.client, &networkingv1.IPAddressList{}); err != nil {
		return nil, err
	}
	if snap.Services, err = cluster.List[corev1.Service](ctx, r.client, &corev1.ServiceList{}); err != nil {
		return nil, err
	}
	return Look(snap, r.survey.Spec, nil), nil
}

// RangeInUseError says that a range cannot be retired yet.
type RangeInUseError struct {
	// Name of the ServiceCIDR; empty, where the range is a flag.
	Name    string
	Range   []netip.Prefix
	Holders []string
}

func (e *RangeInUseError) Error() string {
	if e.Name == "" {
		return fmt.Sprintf("the old range %s is still used by %s", joinRanges(e.Range), listing(e.Holders))
	}
	return fmt.Sprintf("servicecidr %s is still used by %s", e.Name, listing(e.Holders))
}

// defaultRange is the name of the ServiceCIDR that API servers make from their flag (DefaultServiceCIDRName in
// k8s.io/kubernetes pkg/controlplane/controller/defaultservicecidr).
const defaultRange = "kubernetes"

// newDefault is the default ServiceCIDR that API servers make from --service-cluster-ip-range. They do when there is none,
// within ten seconds; a server whose flag still names the range that goes would bring it back.
type newDefault struct {
	client client.Client
	// want is what the flag names, gone what it named before.
	want, gone []netip.Prefix
	// remove takes away the default range of the direction that is left.
	remove bool
}

// step waits for it, and removes the one before, if that is asked for.
func (d newDefault) step() engine.Step {
	const limit = 3 * time.Minute
	id := "default/" + d.want[0].String()
	title := fmt.Sprintf("Wait until the API servers have made %s their default Service range", joinRanges(d.want))
	if !d.remove {
		return &engine.Wait{Name: id, About: title, For: d.made, Limit: limit}
	}
	return &engine.Write{
		Name: id, About: title, Holds: d.made, Limit: limit, Write: d.removeBefore, Changes: deletion("ServiceCIDR " + defaultRange),
	}
}

func (d newDefault) removeBefore(ctx context.Context) error {
	have, err := serviceCIDR(ctx, d.client, defaultRange)
	if err != nil || have == nil || !have.DeletionTimestamp.IsZero() || !slices.Equal(cidrsOf(have), d.gone) {
		return err
	}
	return deleteRange(ctx, d.client, have)
}

// made returns nil once the default range is the one that is wanted.
func (d newDefault) made(ctx context.Context) error {
	have, err := serviceCIDR(ctx, d.client, defaultRange)
	switch {
	case err != nil:
		return err
	case have == nil:
		return engine.NotYet("no API server has made the default servicecidr again")
	case !have.DeletionTimestamp.IsZero():
		return stillThere(ctx, d.client, have.Name, without(d.gone, d.want), nil)
	case slices.Equal(cidrsOf(have), d.gone) && d.remove:
		return engine.NotYet("the default servicecidr is still %s", joinRanges(d.gone))
	case slices.Equal(cidrsOf(have), d.gone):
		return &CameBackError{Range: d.gone}
	case !d.fits(cidrsOf(have)):
		return fmt.Errorf("the default servicecidr is %s, and should be %s", joinRanges(cidrsOf(have)), joinRanges(d.want))
	case !readyCondition(have):
		return engine.NotYet("the default servicecidr is not ready")
	}
	return nil
}

// CameBackError says that an API server made a range again that was retired.
type CameBackError struct {
	Range []netip.Prefix
}

func (e *CameBackError) Error() string {
	return fmt.Sprintf("the default servicecidr came back with %s: an API server still has it as --service-cluster-ip-range",
		joinRanges(e.Range))
}

func (*CameBackError) Advice() string {
	return "restart that API server with the new --service-cluster-ip-range, then run the same command again"
}
