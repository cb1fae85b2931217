package servicecidr

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize/english"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/network/bridge"
	"github.com/replumb/replumb/internal/safety/freeze"
	"github.com/replumb/replumb/internal/safety/lease"
)

// maxRounds bounds how often a run looks again for what appeared while it ran.
const maxRounds = 8

// Apply moves every Service and retires the old range. What appears in the old range meanwhile is swept up before it ends.
func (j *Job) Apply(ctx context.Context, r *engine.Runner) (*Survey, error) {
	if err := j.applicable(ctx); err != nil {
		return nil, err
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return nil, err
	}
	if len(p.Findings.Blocking()) > 0 { // before anything is written, the lock included
		// Another run may well be what blocks: it is named first.
		if holder, err := lease.Current(ctx, j.Tools.Cluster); err == nil && holder != nil {
			return nil, &lease.HeldError{Holder: *holder}
		}
		return nil, j.run(ctx, r, p, p.Apply(), v1alpha1.PhaseApplying)
	}
	if j.Expected != nil {
		if err := j.Expected.Check(p.Apply().Outstanding(ctx)); err != nil {
			return nil, err
		}
	}
	var after *Survey
	j.agents().Found(p.Findings)
	err = j.guarded(false).Locked(ctx, "apply", func(ctx context.Context) error {
		for range maxRounds {
			over, err := j.applyRound(ctx, r, p)
			if err != nil || over {
				after = p.Survey
				return err
			}
			if err := j.applicable(ctx); err != nil {
				return err
			}
			if p, err = j.Examine(ctx); err != nil {
				return err
			}
		}
		return fmt.Errorf("services keep appearing in the old range: gave up after %d rounds", maxRounds)
	})
	return after, err
}

// applyRound runs what can be planned by now. It is over when a whole plan went through and left nothing to do.
func (j *Job) applyRound(ctx context.Context, r *engine.Runner, p *Planner) (over bool, err error) {
	plan := p.Apply()
	to := p.plannable()
	last := to == ""
	if !last {
		if plan, err = plan.Until(to); err != nil {
			return false, err
		}
	}
	stopsHere := false
	if j.Until != "" {
		if until, err := plan.Until(j.Until); err == nil {
			plan, stopsHere = until, true
		}
	}
	err = j.run(ctx, r, p, plan, v1alpha1.PhaseApplying)
	if held := (*RangeInUseError)(nil); errors.As(err, &held) && j.appeared(ctx) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	after, err := j.Examine(ctx)
	if err != nil {
		return false, err
	}
	p.Survey, p.Refresh = after.Survey, after.Refresh
	switch {
	case stopsHere:
		return true, client.IgnoreNotFound(j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) {
			migration.SetReady(st, metav1.ConditionFalse, v1alpha1.ReasonInProgress, "stopped after phase "+j.Until+", as asked")
		}))
	case last && after.idle():
		return true, j.moved(ctx, after)
	}
	return false, nil
}

// moved writes down that apply is over. A run that was killed may have left out what comes after the last hop of a batch.
func (j *Job) moved(ctx context.Context, p *Planner) error {
	if p.frozen() {
		if err := freeze.Clear(ctx, j.Tools.Cluster, j.Spec.Name); err != nil {
			return err
		}
	}
	return j.keeper().Settle(ctx, v1alpha1.PhaseMoved, p.Survey.Counts(), p.Survey.TierCounts(nil))
}

// plannable is the phase up to which apply can be planned by now; empty if that is to its end.
func (p *Planner) plannable() string {
	switch {
	case p.Agents != nil && p.Survey.Probe == nil && len(p.Survey.Pending()) > 0:
		return phaseAgents
	case p.early():
		return phaseKubelets
	}
	return ""
}

// early reports whether what comes after phase kubelets cannot be planned yet.
func (p *Planner) early() bool {
	return len(p.Survey.Pending()) > 0 || p.Survey.Probe != nil && p.Survey.Probe.Place != Moved ||
		(len(p.Survey.DNSMoves()) > 0 && p.Migration.Status.NodesRepointedAt == nil)
}

// idle reports whether apply has nothing left to do.
func (p *Planner) idle() bool {
	if p.Survey.Probe != nil && p.Survey.Probe.Place != Moved {
		return false
	}
	return len(p.Survey.Pending())+len(p.Survey.Orphans)+len(p.Survey.Strays)+p.Refresh.Steps() == 0 && len(p.unretired()) == 0
}

// appeared reports whether there are Services again that have to move.
func (j *Job) appeared(ctx context.Context) bool {
	s, err := j.Look(ctx)
	return err == nil && len(s.Pending()) > 0
}

// applicable takes over what the cluster has recorded of the migration, unless that is beyond apply.
func (j *Job) applicable(ctx context.Context) error {
	have, err := j.Adopt(ctx)
	if err != nil || have == nil {
		return err
	}
	if err := migration.Applicable(have); err != nil {
		return err
	}
	return j.heading(ctx, have, v1alpha1.DesiredApplied)
}

// Rollback brings every Service back to its old address, and then whatever had followed the Services.
func (j *Job) Rollback(ctx context.Context, r *engine.Runner) error {
	if err := migration.Reversible(j.Migration); err != nil {
		return err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return err
	}
	return j.guarded(true).Locked(ctx, "rollback", func(ctx context.Context) error {
		if err := j.desire(ctx, v1alpha1.DesiredRolledBack); err != nil {
			return err
		}
		for range maxRounds {
			over, err := j.rollbackRound(ctx, r)
			if err != nil || over {
				return err
			}
		}
		return fmt.Errorf("services keep leaving their old addresses: gave up after %d rounds", maxRounds)
	})
}

func (j *Job) rollbackRound(ctx context.Context, r *engine.Runner) (over bool, err error) {
	have, err := migration.Get(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil {
		return false, err
	}
	if have != nil {
		j.Migration.Status = have.Status // the round before may have seen the kubelets
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return false, err
	}
	if err := j.intact(p.Survey); err != nil {
		return false, err
	}
	plan := p.Rollback()
	last := !p.awayStill()
	if !last {
		if plan, err = plan.Until(phaseKubelets); err != nil {
			return false, err
		}
	}
	if err := j.run(ctx, r, p, plan, v1alpha1.PhaseRollingBack); err != nil || !last {
		return false, err
	}
	return true, j.keeper().Settle(ctx, v1alpha1.PhaseRolledBack, v1alpha1.Counts{Total: len(p.Survey.Moves), Stays: len(p.Survey.Stays)},
		p.Survey.TierCounts(nil))
}

// awayStill reports whether what comes after phase kubelets of a rollback cannot be planned yet.
func (p *Planner) awayStill() bool {
	dns := false
	for _, e := range p.Survey.everything() {
		if e.Place == Moved || e.Place == HalfHopped {
			return true
		}
		dns = dns || (e.Touched && p.Survey.DNS[e.Key()])
	}
	return dns && p.Migration.Status.NodesRepointedAt == nil
}

// Finish takes old addresses away. There is no way back from it.
func (j *Job) Finish(ctx context.Context, r *engine.Runner) error {
	p, err := j.Finishable(ctx)
	if err != nil {
		return err
	}
	if j.Migration.Status.Phase == v1alpha1.PhaseFinished && len(p.Survey.Moves) == 0 {
		return nil
	}
	return j.guarded(false).Locked(ctx, "finish", func(ctx context.Context) error {
		if err := j.desire(ctx, v1alpha1.DesiredFinished); err != nil {
			return err
		}
		if err := j.run(ctx, r, p, p.Finish(), v1alpha1.PhaseFinishing); err != nil {
			return err
		}
		counts := j.Migration.Status.Counts
		counts.Bridged = 0
		return j.keeper().Settle(ctx, v1alpha1.PhaseFinished, counts, j.Migration.Status.Tiers)
	})
}

// Finishable makes the planner of finish, or says why it is too early.
func (j *Job) Finishable(ctx context.Context) (*Planner, error) {
	if err := migration.Finishable(j.Migration); err != nil {
		return nil, err
	}
	if err := j.keeper().MayRun(ctx); err != nil {
		return nil, err
	}
	p, err := j.Examine(ctx)
	if err != nil {
		return nil, err
	}
	if err := j.intact(p.Survey); err != nil {
		return nil, err
	}
	if problem := p.unfinished(); problem != "" && !j.Migration.Status.PointOfNoReturnPassed {
		return nil, &migration.StateError{
			Name:    j.Spec.Name,
			Problem: "cannot be finished: " + problem,
			Hint:    "run replumb apply -f FILE first",
		}
	}
	return p, nil
}

// unfinished says what apply has left to do; nothing, if it has nothing.
func (p *Planner) unfinished() string {
	if pending := p.Survey.Pending(); len(pending) > 0 {
		return fmt.Sprintf("%s not moved yet, the first is %s", english.Plural(len(pending), "Service", ""), pending[0].Key())
	}
	if n := p.Refresh.Steps(); n > 0 {
		return fmt.Sprintf("%d workloads carry old addresses and have not been restarted", n)
	}
	if left := p.unretired(); len(left) > 0 {
		return fmt.Sprintf("the old range is not retired: %s is still there", listing(left))
	}
	return ""
}

// unretired names the ServiceCIDRs that apply will delete, or wait for.
func (p *Planner) unretired() []string {
	if p.spec().Mode == v1alpha1.ModeExtend {
		return nil
	}
	var names []string
	for i := range p.Survey.Ranges {
		if c := &p.Survey.Ranges[i]; p.retires(c) {
			names = append(names, "servicecidr "+c.Name)
		}
	}
	return names
}

// intact keeps finish and rollback from passing over a Service that they can no longer place.
func (j *Job) intact(s *Survey) error {
	for _, e := range s.Stays {
		if e.Damaged {
			return &migration.StateError{
				Name: j.Spec.Name, Problem: fmt.Sprintf("cannot go on: service %s %s", e.Key(), e.Reason),
				Hint: "replumb check -f FILE says how to mend them",
			}
		}
	}
	return nil
}

// keeper keeps the Migration in the cluster.
func (j *Job) keeper() *migration.Keeper {
	return &migration.Keeper{Client: j.Tools.Cluster, Name: j.Spec.Name, Holder: j.Holder, Now: j.Tools.now}
}

// guarded is the keeper of a run that agents watch, if there are any.
func (j *Job) guarded(lenient bool) *migration.Keeper { return j.agents().Keep(j.keeper(), lenient) }

// Pause asks every run of the migration to stop before its next group of steps, and keeps others from starting.
func (j *Job) Pause(ctx context.Context) error { return j.keeper().Pause(ctx, true) }

// Resume takes a pause back. The caller then carries on with what spec.desired says.
func (j *Job) Resume(ctx context.Context) error { return j.keeper().Pause(ctx, false) }

// heading turns the migration to where it is to go. When it turned, what was seen of the kubelets holds no more.
func (j *Job) heading(ctx context.Context, have *v1alpha1.Migration, to v1alpha1.DesiredState) error {
	j.Migration.Status = have.Status
	if have.Status.NodesRepointedAt == nil || (have.Spec.Desired == v1alpha1.DesiredRolledBack) == (to == v1alpha1.DesiredRolledBack) {
		return nil
	}
	j.Migration.Status.NodesRepointedAt = nil
	return j.keeper().Status(ctx, func(st *v1alpha1.MigrationStatus) { st.NodesRepointedAt = nil })
}

func (j *Job) desire(ctx context.Context, d v1alpha1.DesiredState) error {
	have, err := migration.Get(ctx, j.Tools.Cluster, j.Spec.Name)
	if err != nil {
		return err
	}
	if have == nil {
		return fmt.Errorf("migration %s does not exist any more", j.Spec.Name)
	}
	if err := j.heading(ctx, have, d); err != nil {
		return err
	}
	j.Migration.Spec.Desired = d
	return j.keeper().Desire(ctx, d)
}

// run runs a plan and lets copies of endpoints follow meanwhile.
func (j *Job) run(ctx context.Context, r *engine.Runner, p *Planner, plan *engine.Plan, phase v1alpha1.Phase) error {
	stop := j.followEndpoints(ctx, p)
	err := j.keeper().Run(ctx, r, plan, phase, p.Survey.Counts)
	if outdated := stop(); err != nil && outdated != nil {
		return fmt.Errorf("%w; copies of endpoints were out of date: %w", err, outdated)
	}
	return err
}

// followEndpoints keeps the copied endpoints of bridges like their originals until stop is called, which
// returns why some are out of date.
func (j *Job) followEndpoints(ctx context.Context, p *Planner) (stop func() error) {
	if p.Tools.Cluster == nil || !p.Survey.AnyMirrored() {
		return func() error { return nil }
	}
	var outdated error
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		bridge.Follow(ctx, j.Tools.Cluster, j.Spec.Name, func(err error) { outdated = err })
	}()
	return func() error {
		cancel()
		<-done
		return outdated
	}
}

// HealthPort asks kube-proxy's health-check server of a node through the API server.
type HealthPort struct {
	Cluster *cluster.Cluster
}

var _ bridge.NodeProbe = HealthPort{}

// Ask implements bridge.NodeProbe.
func (h HealthPort) Ask(ctx context.Context, node string, port int32) ([]byte, error) {
	return h.Cluster.GetRaw(ctx, fmt.Sprintf("/api/v1/nodes/%s:%d/proxy/", node, port))
}
