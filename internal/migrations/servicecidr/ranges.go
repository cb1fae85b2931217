package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/network/cidr"
)

// rangeStep adds a Service range: a target, one that keeps pinned Services legitimate, or one that opens again what was
// put in deletion.
type rangeStep struct {
	tools     Tools
	migration string
	name      string
	cidr      netip.Prefix
	role      string
}

var (
	_ engine.Undoer    = (*rangeStep)(nil)
	_ engine.Previewer = (*rangeStep)(nil)
)

func (s *rangeStep) ID() string { return s.role + "/" + s.name }
func (s *rangeStep) Title() string {
	switch s.role {
	case v1alpha1.RoleKeep:
		return fmt.Sprintf("Keep the Service range %s for pinned Services", s.cidr)
	case v1alpha1.RoleReopened:
		return fmt.Sprintf("Open the Service range %s again", s.cidr)
	}
	return fmt.Sprintf("Add the Service range %s", s.cidr)
}

// Undo implements engine.Undoer.
func (s *rangeStep) Undo() engine.Step { return &withdrawStep{s} }

// find returns a ServiceCIDR with exactly this range, whoever made it; one that is going only if there is no other.
func (s *rangeStep) find(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	all, err := serviceCIDRs(ctx, s.tools.Cluster)
	if err != nil {
		return nil, err
	}
	var found *networkingv1.ServiceCIDR
	for i := range all {
		if !slices.Contains(cidrsOf(&all[i]), s.cidr) {
			continue
		}
		if all[i].DeletionTimestamp.IsZero() {
			return &all[i], nil
		}
		found = &all[i]
	}
	return found, nil
}

func serviceCIDRs(ctx context.Context, c client.Client) ([]networkingv1.ServiceCIDR, error) {
	all := &networkingv1.ServiceCIDRList{}
	if err := c.List(ctx, all); err != nil {
		return nil, fmt.Errorf("listing servicecidrs: %w", err)
	}
	return all.Items, nil
}

func (s *rangeStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.find(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || !rangeReady(have) {
		return engine.Pending, nil
	}
	return engine.Done, nil
}

func (s *rangeStep) Do(ctx context.Context) error {
	have, err := s.find(ctx)
	switch {
	case err != nil:
		return err
	case have != nil && have.Name == s.name && !have.DeletionTimestamp.IsZero():
		return engine.NotYet("servicecidr %s is being deleted", have.Name)
	case have != nil && have.DeletionTimestamp.IsZero():
		return nil
	}
	if err := s.tools.Cluster.Create(ctx, s.build(), client.FieldOwner(v1alpha1.FieldManager)); err != nil {
		return fmt.Errorf("servicecidr %s: %w", s.name, err)
	}
	return nil
}

func (s *rangeStep) build() *networkingv1.ServiceCIDR {
	return &networkingv1.ServiceCIDR{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "ServiceCIDR"},
		ObjectMeta: metav1.ObjectMeta{
			Name:   s.name,
			Labels: map[string]string{v1alpha1.LabelMigration: s.migration, v1alpha1.LabelRole: s.role},
		},
		Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{s.cidr.String()}},
	}
}

// Verify waits for the controller manager, which sets Ready.
func (s *rangeStep) Verify(ctx context.Context) error {
	have, err := s.find(ctx)
	if err != nil {
		return err
	}
	if have == nil || !readyCondition(have) {
		return engine.NotYet("servicecidr %s is not ready", s.name)
	}
	return nil
}

func readyCondition(c *networkingv1.ServiceCIDR) bool {
	return len(c.Status.Conditions) > 0 && rangeReady(c)
}

// Preview implements engine.Previewer.
func (s *rangeStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "create", Object: "ServiceCIDR " + s.name, Body: s.build()}}, nil
}

// handOverStep ends a migration's say over a range it added. A range that the cluster has twice by now, since the API
// servers made their own, is removed; any other becomes the cluster's own, and the next migration may empty it.
type handOverStep struct {
	of *rangeStep
}

func (s *handOverStep) ID() string { return "hand-over/" + s.of.name }
func (s *handOverStep) Title() string {
	return fmt.Sprintf("Hand the Service range %s over", s.of.cidr)
}

func (s *handOverStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.of.get(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || have.Labels[v1alpha1.LabelMigration] != s.of.migration {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *handOverStep) Do(ctx context.Context) error {
	have, err := s.of.get(ctx)
	if err != nil || have == nil {
		return err
	}
	twice, err := s.twice(ctx)
	if err != nil {
		return err
	}
	if twice {
		return client.IgnoreNotFound(s.of.tools.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
	}
	forget := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:null,%q:null}}}`,
		have.ResourceVersion, v1alpha1.LabelMigration, v1alpha1.LabelRole)
	return s.of.tools.Cluster.Patch(ctx, have, client.RawPatch(types.MergePatchType, forget), client.FieldOwner(v1alpha1.FieldManager))
}

// twice reports whether another ready ServiceCIDR has the range.
func (s *handOverStep) twice(ctx context.Context) (bool, error) {
	all, err := serviceCIDRs(ctx, s.of.tools.Cluster)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all, func(c networkingv1.ServiceCIDR) bool {
		return c.Name != s.of.name && readyCondition(&c) && slices.Contains(cidrsOf(&c), s.of.cidr)
	}), nil
}

func (s *handOverStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err == nil && state != engine.Done {
		return engine.NotYet("servicecidr %s still says it belongs to the migration", s.of.name)
	}
	return err
}

// withdrawStep removes a range that the migration added.
type withdrawStep struct {
	of *rangeStep
}

func (s *withdrawStep) ID() string    { return "withdraw/" + s.of.name }
func (s *withdrawStep) Title() string { return fmt.Sprintf("Remove the Service range %s", s.of.cidr) }

func (s *withdrawStep) State(ctx context.Context) (engine.State, error) {
	have, err := s.of.get(ctx)
	if err != nil {
		return engine.Unknown, err
	}
	if have == nil || have.Labels[v1alpha1.LabelMigration] != s.of.migration {
		return engine.Done, nil
	}
	return engine.Pending, nil
}

func (s *rangeStep) get(ctx context.Context) (*networkingv1.ServiceCIDR, error) {
	return serviceCIDR(ctx, s.tools.Cluster, s.name)
}

// serviceCIDR returns nil if there is none of that name.
func serviceCIDR(ctx context.Context, c client.Client, name string) (*networkingv1.ServiceCIDR, error) {
	have := &networkingv1.ServiceCIDR{}
	err := c.Get(ctx, client.ObjectKey{Name: name}, have)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("servicecidr %s: %w", name, err)
	}
	return have, nil
}

func (s *withdrawStep) Do(ctx context.Context) error {
	have, err := s.of.get(ctx)
	if err != nil || have == nil {
		return err
	}
	return client.IgnoreNotFound(s.of.tools.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}

// Verify waits until the range is gone. The API server keeps it as long as an address in it is in use.
func (s *withdrawStep) Verify(ctx context.Context) error {
	have, err := s.of.get(ctx)
	if err != nil || have == nil {
		return err
	}
	return stillThere(ctx, s.of.tools.Cluster, s.of.name, []netip.Prefix{s.of.cidr}, nil)
}

// Preview implements engine.Previewer.
func (s *withdrawStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: "ServiceCIDR " + s.of.name}}, nil
}

// stillThere says why a ServiceCIDR that was deleted is still there, by the names of those who use it.
func stillThere(ctx context.Context, c client.Client, name string, cidrs, kept []netip.Prefix) error {
	holders, err := holders(ctx, c, cidrs, kept)
	if err != nil {
		return err
	}
	if len(holders) == 0 {
		return engine.NotYet("servicecidr %s is still being removed", name)
	}
	return engine.NotYet("servicecidr %s is still used by %s", name, listing(holders))
}

// listing names the first few of many.
func listing(all []string) string {
	const few = 10
	if len(all) <= few {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:few], ", "), len(all)-few)
}

// holders name who has an address in some ranges, those kept for pinned Services aside. The API server counts only
// addresses it gave to Services (canDeleteCIDR in k8s.io/kubernetes
// pkg/controller/servicecidrs/servicecidrs_controller.go); holds are not among them.
func holders(ctx context.Context, c client.Client, cidrs, kept []netip.Prefix) ([]string, error) {
	all := &networkingv1.IPAddressList{}
	if err := c.List(ctx, all, client.MatchingLabels{networkingv1.LabelManagedBy: "ipallocator.k8s.io"}); err != nil {
		return nil, fmt.Errorf("listing ipaddresses: %w", err)
	}
	var holders []string
	for i := range all.Items {
		a, err := netip.ParseAddr(all.Items[i].Name)
		if err == nil && cidr.Contains(cidrs, a) && !cidr.Contains(kept, a) {
			holders = append(holders, bridge.ParentOf(&all.Items[i])+" ("+a.String()+")")
		}
	}
	return holders, nil
}

// RangeInUseError says that a range cannot be retired yet.
type RangeInUseError struct {
	Name    string
	Holders []string
}

func (e *RangeInUseError) Error() string {
	return fmt.Sprintf("servicecidr %s is still used by %s", e.Name, listing(e.Holders))
}

// retireStep deletes a ServiceCIDR that the migration did not make and that is empty by now.
type retireStep struct {
	tools Tools
	name  string
	cidrs []netip.Prefix
	// kept are the ranges in which pinned Services stay.
	kept []netip.Prefix
}

func (s *retireStep) ID() string    { return "retire/" + s.name }
func (s *retireStep) Title() string { return "Retire the Service range " + joinRanges(s.cidrs) }

func (s *retireStep) State(ctx context.Context) (engine.State, error) {
	have, err := serviceCIDR(ctx, s.tools.Cluster, s.name)
	switch {
	case err != nil:
		return engine.Unknown, err
	case have == nil || !slices.Equal(cidrsOf(have), s.cidrs):
		return engine.Done, nil
	}
	return engine.Pending, nil
}

// Do deletes the range if nobody uses it. From then on the API server gives no address out of it.
func (s *retireStep) Do(ctx context.Context) error {
	have, err := serviceCIDR(ctx, s.tools.Cluster, s.name)
	if err != nil || have == nil || !have.DeletionTimestamp.IsZero() {
		return err
	}
	holders, err := holders(ctx, s.tools.Cluster, s.cidrs, s.kept)
	if err != nil {
		return err
	}
	if len(holders) > 0 {
		return &RangeInUseError{Name: s.name, Holders: holders}
	}
	return client.IgnoreNotFound(s.tools.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}

func (s *retireStep) Verify(ctx context.Context) error {
	state, err := s.State(ctx)
	if err != nil || state == engine.Done {
		return err
	}
	return stillThere(ctx, s.tools.Cluster, s.name, s.cidrs, s.kept)
}

// Preview implements engine.Previewer.
func (s *retireStep) Preview() ([]engine.Change, error) {
	return []engine.Change{{Verb: "delete", Object: "ServiceCIDR " + s.name}}, nil
}

// vacantStep looks whether a range can be retired, before operators are asked to give it up.
type vacantStep struct {
	of *retireStep
}

func (s *vacantStep) ID() string { return "vacant/" + s.of.name }
func (s *vacantStep) Title() string {
	return "See that nobody uses the Service range " + joinRanges(s.of.cidrs)
}

func (s *vacantStep) State(ctx context.Context) (engine.State, error) {
	err := s.Verify(ctx)
	switch {
	case err == nil:
		return engine.Done, nil
	case errors.As(err, new(*RangeInUseError)):
		return engine.Blocked, err
	}
	return engine.Unknown, err
}

func (*vacantStep) Do(context.Context) error { return nil }

func (s *vacantStep) Verify(ctx context.Context) error {
	gone, err := s.of.State(ctx)
	if err != nil || gone == engine.Done {
		return err
	}
	holders, err := holders(ctx, s.of.tools.Cluster, s.of.cidrs, s.of.kept)
	if err == nil && len(holders) > 0 {
		return &RangeInUseError{Name: s.of.name, Holders: holders}
	}
	return err
}

// defaultRange is the name of the ServiceCIDR that API servers make from their flag (DefaultServiceCIDRName in
// k8s.io/kubernetes pkg/controlplane/controller/defaultservicecidr).
const defaultRange = "kubernetes"

// defaultStep waits for the API servers to make the default ServiceCIDR anew from --service-cluster-ip-range. They do when
// there is none, within ten seconds; a server whose flag still names the range that goes would bring it back.
type defaultStep struct {
	tools Tools
	// want is what the flag names, gone what it named before.
	want, gone []netip.Prefix
	// remove takes away the default range of the direction that is left.
	remove bool
}

func (s *defaultStep) ID() string { return "default/" + s.want[0].String() }
func (s *defaultStep) Title() string {
	return fmt.Sprintf("See the API servers make %s their default Service range", joinRanges(s.want))
}
func (*defaultStep) Deadline() time.Duration { return 3 * time.Minute }

func (s *defaultStep) State(ctx context.Context) (engine.State, error) {
	err := s.Verify(ctx)
	if err == nil {
		return engine.Done, nil
	}
	if engine.Retryable(err) {
		return engine.Pending, nil
	}
	return engine.Blocked, err
}

func (s *defaultStep) Do(ctx context.Context) error {
	have, err := serviceCIDR(ctx, s.tools.Cluster, defaultRange)
	if err != nil || have == nil || !s.remove || !have.DeletionTimestamp.IsZero() || !slices.Equal(cidrsOf(have), s.gone) {
		return err
	}
	return client.IgnoreNotFound(s.tools.Cluster.Delete(ctx, have, client.Preconditions{UID: &have.UID}))
}

func (s *defaultStep) Verify(ctx context.Context) error {
	have, err := serviceCIDR(ctx, s.tools.Cluster, defaultRange)
	switch {
	case err != nil:
		return err
	case have == nil:
		return engine.NotYet("no API server has made the default servicecidr again")
	case !have.DeletionTimestamp.IsZero():
		return stillThere(ctx, s.tools.Cluster, have.Name, s.gone, nil)
	case slices.Equal(cidrsOf(have), s.gone) && s.remove:
		return engine.NotYet("the default servicecidr is still %s", joinRanges(s.gone))
	case slices.Equal(cidrsOf(have), s.gone):
		return &CameBackError{Range: s.gone}
	case len(cidrsOf(have)) == 0 || !slices.Contains(s.want, cidrsOf(have)[0]):
		return fmt.Errorf("the default servicecidr is %s, and should be %s", joinRanges(cidrsOf(have)), joinRanges(s.want))
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

// Advice implements fault.Adviser.
func (*CameBackError) Advice() string {
	return "restart that API server with the new --service-cluster-ip-range, then run the same command again"
}
