package servicecidr

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migration/kubeadmgate"
	"github.com/replumb/replumb/internal/migrations/servicecidr/checks"
	"github.com/replumb/replumb/internal/migrations/servicecidr/ranges"
	"github.com/replumb/replumb/internal/migrations/servicecidr/trials"
	"github.com/replumb/replumb/internal/safety/freeze"
)

// live asks what only the running cluster can tell. A look that is answered with an error of the
// API server is a finding, and takes no other look away.
func (j *Job) live(ctx context.Context, in *checks.Input) error {
	tries, err := j.trials(ctx, in)
	if err != nil {
		return err
	}
	looks := slices.Concat(tries, []func(context.Context) error{
		func(ctx context.Context) error { return j.inspect(ctx, in) },
		func(ctx context.Context) error { return j.seeDualWrite(ctx, in) },
		func(ctx context.Context) error { return j.seeGuard(ctx, in) },
		func(ctx context.Context) error { return j.kept(ctx, in) },
		func(ctx context.Context) error { return j.seeKubeadm(ctx, in) },
		func(ctx context.Context) error { return j.seeFreeze(ctx, in) },
		func(ctx context.Context) (err error) {
			in.AbsentSecrets, err = j.agents().AbsentSecrets(ctx, j.Deps.Cluster)
			return err
		},
	})
	eg, ctx := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	unanswered := make([]error, len(looks))
	for i, look := range looks {
		eg.Go(func() error {
			err := access.UnlessForbidden(look(ctx))
			if err == nil || !j.Tells(err) {
				return err
			}
			unanswered[i] = err
			return nil
		})
	}
	err = eg.Wait()
	in.Unanswered = slices.DeleteFunc(unanswered, func(err error) bool { return err == nil })
	return err
}

// seeFreeze asks whether Services can be frozen, where they are to be.
func (j *Job) seeFreeze(ctx context.Context, in *checks.Input) error {
	if j.Spec.Common.Freeze == v1alpha1.FreezeDisabled {
		return nil
	}
	err := error(&freeze.UnavailableError{Err: errors.New("the user may not create ValidatingAdmissionPolicies")})
	if j.May("create", "admissionregistration.k8s.io", "validatingadmissionpolicies") {
		err = freeze.Possible(ctx, j.Deps.Cluster, j.Spec.Name)
	}
	if unavailable := (*freeze.UnavailableError)(nil); errors.As(err, &unavailable) || apierrors.IsForbidden(err) {
		in.Freeze = err
		return nil
	}
	return err
}

// seeKubeadm looks at what gates: Kubeadm stands on.
func (j *Job) seeKubeadm(ctx context.Context, in *checks.Input) error {
	if j.Spec.Gates != v1alpha1.GatesKubeadm {
		return nil
	}
	var err error
	in.Kubeadm, err = kubeadmgate.Load(ctx, j.Deps.Cluster)
	return access.UnlessForbidden(err)
}

// inspect looks through the rest of the cluster, once in a job, since that is a lot.
func (j *Job) inspect(ctx context.Context, in *checks.Input) error {
	if j.inspection == nil {
		scanner, err := checks.NewReferenceScanner(in.Inventory)
		if err != nil {
			return err
		}
		found, err := inventory.References(ctx, j.Deps.Cluster, scanner)
		if err != nil {
			return err
		}
		if err := inventory.Neighbours(ctx, j.Deps.Cluster, found); err != nil {
			return err
		}
		j.inspection = found
	}
	in.Live.Inspection = j.inspection
	return nil
}

func (j *Job) trials(ctx context.Context, in *checks.Input) (tries []func(context.Context) error, err error) {
	in.Trials.Forms = map[string]map[v1alpha1.BridgeForm]error{}
	if len(in.Inventory.Pending()) > 0 && j.Spec.Bridge != v1alpha1.BridgeExternalIPs {
		if in.Trials.NodePorts, err = apiserver.SeeNodePorts(ctx, j.Deps.Cluster); err != nil {
			return nil, err
		}
	}
	var added []ranges.ServiceRange
	if plan := (&ranges.RangePlan{Client: j.Deps.Cluster, Inventory: in.Inventory}); !in.Inventory.Bitmap {
		added = slices.Concat(plan.Targets(), plan.Kept())
	}
	t := &trials.Trier{
		Cluster: j.Deps.Cluster, Inventory: in.Inventory, May: j.May, Ranges: added,
		Candidates: in.Candidates(), Found: &in.Trials,
	}
	if j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack { // the way back is not refused before it begins
		return t.Bridges(), nil
	}
	return append(t.Bridges(), t.Others()...), nil
}

// chooseOverlaps asks by dry runs before it decides that Services keep addresses themselves: the
// API server is to take an edit of theirs, and not only replumb's write to etcd.
func (j *Job) chooseOverlaps(ctx context.Context, in *checks.Input) error {
	around := in.OverlapFacts()
	in.Inventory.ChooseOverlaps(around)
	if !j.May("patch", "", "services") {
		return j.seeKeepType(ctx, in)
	}
	t := &trials.Trier{Cluster: j.Deps.Cluster, Inventory: in.Inventory, Found: &in.Trials}
	eg, asking := errgroup.WithContext(ctx)
	eg.SetLimit(parallel)
	for _, try := range t.OwnAddresses(around.Refused) {
		eg.Go(func() error { return try(asking) })
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	in.Inventory.ChooseOverlaps(around)
	return j.seeKeepType(ctx, in)
}

// keepType is the policy that keeps the type of Services, where one needs it and there can be one,
// or where it is there.
func (j *Job) keepType(ctx context.Context, in checks.Input) (*freeze.KeepType, error) {
	k := &freeze.KeepType{Client: j.Deps.Client(), Migration: j.Spec.Name}
	if in.Inventory.AsLoadBalancers() && in.KeepType == nil {
		return k, nil
	}
	if j.Recorded == nil { // which comes before the policy
		return nil, nil
	}
	answers, err := j.Deps.Cluster.Access(ctx, Roles().Of(access.BehindCilium).Rights())
	denied := func(a access.Answer) bool { return a.Right.Verb == "get" && !a.Allowed }
	if err != nil || slices.ContainsFunc(answers, denied) { // who may not look has made none
		return nil, err
	}
	there, err := k.There(ctx)
	if err != nil || !there {
		return nil, err
	}
	return k, nil
}

// seeKeepType asks whether there can be such a policy, where one is needed.
func (j *Job) seeKeepType(ctx context.Context, in *checks.Input) error {
	if !in.Inventory.AsLoadBalancers() {
		return nil
	}
	err := error(&freeze.UnavailableError{Err: errors.New("the user may not create MutatingAdmissionPolicies")})
	if j.May("create", "admissionregistration.k8s.io", "mutatingadmissionpolicies") {
		err = freeze.KeepType{Client: j.Deps.Cluster, Migration: j.Spec.Name}.Possible(ctx)
	}
	if errors.As(err, new(*freeze.UnavailableError)) {
		in.KeepType = err
		return nil
	}
	return err
}

// seeDualWrite looks only where API servers are to be given another range.
func (j *Job) seeDualWrite(ctx context.Context, in *checks.Input) (err error) {
	goes := slices.ContainsFunc(ranges.ToRetire(in.Inventory), func(c *networkingv1.ServiceCIDR) bool { return c.Name == ranges.DefaultRange })
	if !goes || j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack {
		return nil
	}
	for _, m := range []*v1alpha1.Migration{j.Migration, j.Recorded} { // the file has it, or the Migration in the cluster
		in.Vouched = in.Vouched || migration.Answered(m, v1alpha1.AnnotationDualWrite, checks.DualWriteOff)
	}
	in.DualWrite, err = apiserver.SeeDualWrite(ctx, j.Deps.Cluster, in.Snapshot.Version)
	return err
}

// seeGuard asks whether addresses can be kept from others, where that will be needed.
func (j *Job) seeGuard(ctx context.Context, in *checks.Input) error {
	in.Back = j.Migration.Spec.Desired == v1alpha1.DesiredRolledBack
	if !in.Inventory.Bitmap || !j.May("create", "admissionregistration.k8s.io", "validatingadmissionpolicies") {
		return nil // the rights check says so
	}
	err := freeze.GuardPossible(ctx, j.Deps.Cluster, j.Spec.Name)
	if errors.As(err, new(*freeze.UnavailableError)) || errors.As(err, new(*freeze.ForeignError)) || apierrors.IsForbidden(err) {
		in.Guard = fmt.Errorf("addresses cannot be kept from others: %w", err)
		return nil
	}
	return client.IgnoreNotFound(err)
}

func (j *Job) kept(ctx context.Context, in *checks.Input) error {
	all, store := checks.ServicesMovedByEtcd(in.Inventory), j.store()
	if len(all) == 0 || store == nil || j.Deps.Store == nil && in.ThroughKubeadm() {
		return nil
	}
	in.Storage.Refused, in.Storage.Err = store.Check(ctx, all)
	return nil
}
