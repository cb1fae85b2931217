package controller

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/metrics"
)

const (
	// resync is how often everything is decided again although nothing was seen to happen.
	resync = 30 * time.Second
	// planned is for how long a plan counts: the cluster changes without any Migration changing.
	planned = 10 * time.Minute
)

// Operator is one of the replicas, of which the leading one runs Migrations.
type Operator struct {
	Kinds         migrations.Kinds
	Tools         migrations.Deps
	Identity      engine.Identity
	Name, Version string
	Namespace     string
	Allowed       []string
	PlansApproved bool
	// Only are the kinds that it has rights for, by their fields; none is all.
	Only    []string
	Metrics *metrics.Metrics
	Log     func(format string, args ...any)

	// The fields below belong to the goroutine that leads.

	current  *run
	failures map[string]*Outcome
	plans    map[string]plan
}

type plan struct {
	Planned
	of string
	at time.Time
}

func (o *Operator) cluster() *cluster.Cluster { return o.Tools.Cluster }

func (o *Operator) lead(ctx context.Context) {
	o.failures, o.plans = map[string]*Outcome{}, map[string]plan{}
	o.Log("%s leads", o.Name)
	changed := make(chan struct{}, 1)
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { o.watch(ctx, changed) })
	for ctx.Err() == nil {
		next, err := o.round(ctx)
		if err != nil && ctx.Err() == nil {
			o.Log("error: %v", err)
		}
		o.await(ctx, changed, next)
	}
	if o.current != nil {
		o.current.stop(context.Cause(ctx))
		<-o.current.ended
		o.current = nil
	}
	o.Log("%s leads no more", o.Name)
}

// await returns when there is something to decide: after a pause at the latest.
func (o *Operator) await(ctx context.Context, changed <-chan struct{}, pause time.Duration) {
	var ended <-chan struct{}
	if o.current != nil {
		ended = o.current.ended
	}
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-changed:
	case <-ended:
	case <-timer.C:
	}
}

func (o *Operator) watch(ctx context.Context, changed chan<- struct{}) {
	signal := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		w, err := o.cluster().Watch(ctx, &v1alpha1.MigrationList{})
		if err != nil {
			return // the definition may not be there yet; the next round says so
		}
		defer w.Stop()
		signal() // what happened in between
		for {
			select {
			case <-ctx.Done():
				return
			case _, open := <-w.ResultChan():
				if !open {
					return
				}
				signal()
			}
		}
	}, time.Second)
}

// round decides what each Migration needs, and begins or ends a run. It returns when to decide
// again.
func (o *Operator) round(ctx context.Context) (next time.Duration, err error) {
	o.collect(ctx)
	revisions, err := o.revisions(ctx)
	if err != nil {
		return resync, err
	}
	if revisions.Cluster < 0 {
		o.Log("waiting: the cluster has no definition of Migration; install it with: replumb install")
		return resync, nil
	}
	all, err := migration.List(ctx, o.cluster())
	if err != nil {
		return resync, err
	}
	next = resync
	for i := range all {
		m := &all[i]
		d := Decide(o.scene(m, all, revisions))
		if d.After > 0 {
			next = min(next, d.After)
		}
		if o.current != nil && o.current.name == m.Name {
			o.current.supersede(m, d)
			continue
		}
		if err := o.carryOut(ctx, m, d); err != nil {
			return next, err
		}
	}
	o.forget(all)
	return max(next, time.Second), nil
}

func (o *Operator) forget(all []v1alpha1.Migration) {
	gone := func(name string) bool {
		return !slices.ContainsFunc(all, func(m v1alpha1.Migration) bool { return m.Name == name })
	}
	if o.current != nil && gone(o.current.name) {
		o.current.stop(engine.ErrSuperseded)
	}
	maps.DeleteFunc(o.failures, func(name string, _ *Outcome) bool { return gone(name) })
	maps.DeleteFunc(o.plans, func(name string, _ plan) bool { return gone(name) })
}

func (o *Operator) scene(m *v1alpha1.Migration, all []v1alpha1.Migration, revisions Revisions) Scene {
	s := Scene{
		Migration: m, Kinds: o.Kinds, Only: o.Only, Others: all, Revisions: revisions, Allowed: o.Allowed, PlansApproved: o.PlansApproved, Now: time.Now(),
	}
	is := fingerprint(m)
	if p, ok := o.plans[m.Name]; ok && p.of == is && time.Since(p.at) < planned {
		s.Planned = p.Planned
	}
	if last := o.failures[m.Name]; last != nil {
		if last.Of == "" {
			last.Of = is // with what the run itself has recorded
		}
		s.Last = last
	}
	return s
}

// carryOut says what was decided, and begins a run if one is needed and no other is in hand.
func (o *Operator) carryOut(ctx context.Context, m *v1alpha1.Migration, d Decision) error {
	if d.Act != Rest && o.current != nil {
		d = Decision{
			Act: Rest, Standing: migration.UnderWay, Reason: v1alpha1.ReasonWaitingForMigration, Paused: d.Paused,
			Message: fmt.Sprintf("waits for migration %s, which is under way", o.current.name),
		}
	}
	lost := ""
	if d.Act == Rollback && Lost(m) {
		lost = m.Status.LastError
	}
	if err := o.note(ctx, m, d); err != nil {
		return err
	}
	if d.Act != Rest {
		o.begin(ctx, m, d.Act, lost)
	}
	return nil
}

// note writes a new decision to the status, and keeps fields that this build does not know.
func (o *Operator) note(ctx context.Context, m *v1alpha1.Migration, d Decision) error {
	now := m.DeepCopy()
	d.Note(&now.Status)
	for i := range now.Status.Conditions {
		now.Status.Conditions[i].ObservedGeneration = m.Generation
	}
	now.Status.ObservedGeneration, now.Status.Type = m.Generation, m.Spec.Type()
	if equality.Semantic.DeepEqual(now.Status, m.Status) {
		return nil
	}
	if d.Reason != "" {
		o.Log("migration %s: %s: %s", m.Name, d.Reason, firstLine(d.Message))
	}
	err := o.cluster().Status().Patch(ctx, now, client.MergeFromWithOptions(m, client.MergeFromWithOptimisticLock{}),
		client.FieldOwner(v1alpha1.FieldManager))
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil // the next round sees what it is now
	}
	if err != nil {
		return fmt.Errorf("status of migration %s: %w", m.Name, err)
	}
	return nil
}

func (o *Operator) revisions(ctx context.Context) (Revisions, error) {
	own, have, err := o.cluster().Revisions(ctx, cluster.Migration)
	return Revisions{Own: own, Cluster: have}, err
}
