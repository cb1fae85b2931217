package main

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

func migrationOf(form v1alpha1.BridgeForm) *v1alpha1.Migration {
	none := metav1.Duration{}
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: v1alpha1.MigrationSpec{
			ServiceCIDR: &v1alpha1.ServiceCIDRSpec{
				To: []string{newRange}, Drain: &none, ClusterServices: v1alpha1.ClusterServicesStay, Bridge: form,
			},
			Batch: v1alpha1.BatchSpec{Size: batchSize, Settle: &none},
		},
	}
}

// measure measures one move of a number of Services, on an API server of its own.
func measure(ctx context.Context, o options, n int, form v1alpha1.BridgeForm) error {
	f, err := newFleet(ctx, n, o.inFlight)
	if err != nil {
		return err
	}
	defer func() { _ = f.server.Stop() }()
	fmt.Printf("\n%d Services, bridges by %s, %d at once\n", n, form, o.parallel)
	switch {
	case o.inFlight > 0:
		return f.adapt(ctx, o, form)
	case !o.bare:
		apply, finish, err := f.replumb(ctx, form)
		fmt.Printf("  RESULT %d %s: replumb apply %s, finish %s\n", n, form, apply, finish)
		return err
	}
	return f.move(ctx, o, form)
}

// adapt moves all Services on an API server that takes few requests at once: by replumb, and as a control by the bare client, which sends as
// many as ever.
func (f *fleet) adapt(ctx context.Context, o options, form v1alpha1.BridgeForm) error {
	apply, finish, err := f.replumb(ctx, form)
	fmt.Printf("  RESULT %d %s, %d in flight: replumb apply %s, finish %s\n", f.n, form, o.inFlight, apply, finish)
	if err != nil {
		return err
	}
	r := &raw{fleet: f, form: form, cidr: newRange, at: servicesAt, parallel: o.parallel, holds: true}
	took, err := r.run(ctx)
	fmt.Printf("  RESULT %d %s, %d in flight: control %s: %s; error: %v\n", f.n, form, o.inFlight, took, f.counter.Per(f.n), err)
	return nil
}

// move measures one move: by the bare client, by replumb, and by the bare client with holds, one after the other. Each
// moves every Service.
func (f *fleet) move(ctx context.Context, o options, form v1alpha1.BridgeForm) error {
	n := f.n
	four, err := f.bare(ctx, &raw{fleet: f, form: form, cidr: oldRange, at: rawAt, parallel: o.parallel})
	if err != nil {
		return err
	}
	apply, finish, err := f.replumb(ctx, form)
	if err != nil {
		return err
	}
	nine, err := f.bare(ctx, &raw{fleet: f, form: form, cidr: newRange, at: servicesAt, parallel: o.parallel, holds: true})
	if err != nil {
		return err
	}
	whole := apply
	whole.add(finish)
	fmt.Printf("  RESULT %d %s: replumb %s: apply %s, finish %s\n", n, form, whole, apply, finish)
	for _, bare := range []struct {
		what string
		cost
	}{{"create, two patches, delete", four}, {"all writes that replumb makes", nine}} {
		fmt.Printf("  RESULT %d %s: bare client, %s: %s; ratio %.2f, of processor time %.2f\n", n, form, bare.what, bare.cost,
			whole.wall.Seconds()/bare.wall.Seconds(), whole.cpu.Seconds()/bare.cpu.Seconds())
	}
	return nil
}

func (f *fleet) bare(ctx context.Context, r *raw) (cost, error) {
	took, err := r.run(ctx)
	if err != nil {
		return cost{}, fmt.Errorf("bare client: %w", err)
	}
	fmt.Printf("  bare client, holds %t: %s; per Service: %s\n", r.holds, took, f.counter.Per(f.n))
	return took, f.clean(ctx)
}

// patience is how often an apply that stopped is begun again. What it took is counted.
const patience = 5

// replumb moves everything, from nothing known to finished.
func (f *fleet) replumb(ctx context.Context, form v1alpha1.BridgeForm) (apply, finish cost, err error) {
	tools := servicecidr.Deps{
		Tools: migration.Tools{Cluster: f.cluster},
		Probe: servicecidr.HealthPort{Cluster: f.cluster}, Inspector: apiserver.New(f.server.Config),
	}
	job, err := servicecidr.NewJob(tools, migrationOf(form))
	if err != nil {
		return apply, finish, err
	}
	t := &timing{n: f.n}
	runner := &engine.Runner{Sink: t.take}
	f.counter.Reset()
	stop := clock()
	after, err := job.Apply(ctx, runner)
	for again := 0; err != nil && again < patience; again++ { // as people do: the same command carries on
		fmt.Printf("  apply stopped after %s: %v\n", stop(), err)
		after, err = job.Apply(ctx, runner)
	}
	if err != nil {
		return apply, finish, fmt.Errorf("apply: %w", err)
	}
	apply = stop()
	if c := after.Counts(); c.Moved != f.n {
		return apply, finish, fmt.Errorf("apply moved %d of %d Services", c.Moved, f.n)
	}
	fmt.Printf("  replumb apply: %s; per Service: %s\n%s", apply, f.counter.Per(f.n), t.report(apply.wall))
	job, err = servicecidr.NewJob(tools, migrationOf(form))
	if err != nil {
		return apply, finish, err
	}
	*t = timing{n: f.n}
	f.counter.Reset()
	stop = clock()
	if err := job.Finish(ctx, runner); err != nil {
		return apply, finish, fmt.Errorf("finish: %w", err)
	}
	finish = stop()
	fmt.Printf("  replumb finish: %s; per Service: %s\n%s", finish, f.counter.Per(f.n), t.report(finish.wall))
	return apply, finish, nil
}
