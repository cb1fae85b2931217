package main

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/apiserver"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/servicecidr"
)

// services are how Services are moved.
type services struct {
	slices   int
	program  string
	parallel int
	// bare is whether bare clients move the Services as well; inFlight, if not 0, is how many
	// requests the API server takes at once.
	bare     bool
	inFlight int
}

// ofServices measures what replumb's own care costs: it moves thousands of Services on an API
// server without nodes, and sends the same writes by a bare client in the same run.
func ofServices(flags *flag.FlagSet) func(context.Context) error {
	o := services{}
	numbers := flags.String("services", "5000,10000", "how many Services to move, one measurement each")
	forms := flags.String("forms", "ExternalIPs,LoadBalancer,Etcd",
		"bridge forms, one measurement each; Etcd for Services that keep their old address themselves, which etcd moves")
	flags.IntVar(&o.slices, "slices", 50000, "EndpointSlices for the measurement of plan; 0 leaves it out")
	flags.StringVar(&o.program, "replumb", "bin/replumb", "the program whose plan is measured")
	flags.IntVar(&o.parallel, "parallel", 32, "requests of the bare client at once: what replumb does at once")
	flags.BoolVar(&o.bare, "bare", true, "measure the bare clients too")
	flags.IntVar(&o.inFlight, "in-flight", 0,
		"requests that the API server takes at once, half of them writes; others it refuses. The bare client then comes last")
	return func(ctx context.Context) error {
		last := 0
		for text := range strings.SplitSeq(*numbers, ",") {
			n, err := strconv.Atoi(text)
			if err != nil || n < 2 || n > 16000 {
				return fmt.Errorf("-services %s: want numbers from 2 to 16000", *numbers)
			}
			for form := range strings.SplitSeq(*forms, ",") {
				if err := o.measure(ctx, n, v1alpha1.BridgeForm(form)); err != nil {
					return err
				}
			}
			last = n
		}
		if o.slices == 0 {
			return nil
		}
		return o.plan(ctx, last)
	}
}

// byEtcd stands for a form where no bridge is.
const byEtcd v1alpha1.BridgeForm = "Etcd"

func (f *shelf) moveOfServices(form v1alpha1.BridgeForm) *v1alpha1.Migration {
	none := metav1.Duration{}
	spec := &v1alpha1.ServiceCIDRSpec{To: []string{newRange}, Drain: &none, ClusterServices: v1alpha1.ClusterServicesStay, Bridge: form}
	if form == byEtcd {
		spec.Bridge, spec.Etcd = v1alpha1.BridgeExternalIPs, &v1alpha1.StoreSpec{Endpoints: []string{f.server.Etcd}}
		spec.Strategies.ClusterIP = v1alpha1.StrategyOfEtcd
	}
	return migrationOf(v1alpha1.MigrationSpec{ServiceCIDR: spec, Batch: v1alpha1.BatchSpec{Size: batchSize, Settle: &none}})
}

// measure measures one move of a number of Services, on an API server of its own.
func (o services) measure(ctx context.Context, n int, form v1alpha1.BridgeForm) error {
	f, err := newShelf(ctx, n, o.inFlight)
	if err != nil {
		return err
	}
	defer func() { _ = f.server.Stop() }()
	fmt.Printf("\n%d Services, %s, %d at once\n", n, form, o.parallel)
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

// adapt moves all Services on an API server that takes few requests at once: by replumb, and as a
// control by the bare client, which sends as many as ever.
func (f *shelf) adapt(ctx context.Context, o services, form v1alpha1.BridgeForm) error {
	apply, finish, err := f.replumb(ctx, form)
	fmt.Printf("  RESULT %d %s, %d in flight: replumb apply %s, finish %s\n", f.n, form, o.inFlight, apply, finish)
	if err != nil {
		return err
	}
	r := &raw{shelf: f, form: form, cidr: newRange, at: servicesAt, parallel: o.parallel, holds: true}
	took, err := r.run(ctx)
	fmt.Printf("  RESULT %d %s, %d in flight: control %s: %s; error: %v\n", f.n, form, o.inFlight, took, f.counter.per(f.n), err)
	return nil
}

// move measures one move: by the bare client, by replumb, and by the bare client with holds, one
// after the other. Each moves every Service.
func (f *shelf) move(ctx context.Context, o services, form v1alpha1.BridgeForm) error {
	n := f.n
	four, err := f.bare(ctx, &raw{shelf: f, form: form, cidr: oldRange, at: rawAt, parallel: o.parallel})
	if err != nil {
		return err
	}
	apply, finish, err := f.replumb(ctx, form)
	if err != nil {
		return err
	}
	nine, err := f.bare(ctx, &raw{shelf: f, form: form, cidr: newRange, at: servicesAt, parallel: o.parallel, holds: true})
	if err != nil {
		return err
	}
	whole := cost{wall: apply.wall + finish.wall, cpu: apply.cpu + finish.cpu}
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

func (f *shelf) bare(ctx context.Context, r *raw) (cost, error) {
	took, err := r.run(ctx)
	if err != nil {
		return cost{}, fmt.Errorf("bare client: %w", err)
	}
	fmt.Printf("  bare client, holds %t: %s; per Service: %s\n", r.holds, took, f.counter.per(f.n))
	return took, f.clean(ctx)
}

// patience is how often an apply that stopped is begun again. What it took is counted.
const patience = 5

// replumb moves everything, from nothing known to finished.
func (f *shelf) replumb(ctx context.Context, form v1alpha1.BridgeForm) (apply, finish cost, err error) {
	tools := servicecidr.Deps{
		Deps:  migration.Deps{Cluster: f.cluster},
		Probe: servicecidr.HealthPort{Cluster: f.cluster}, Inspector: apiserver.New(f.server.Config),
	}
	job, err := servicecidr.NewJob(tools, f.moveOfServices(form))
	if err != nil {
		return apply, finish, err
	}
	t := &timing{}
	runner := &engine.Runner{Sink: t.take}
	f.counter.reset()
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
	fmt.Printf("  replumb apply: %s; per Service: %s\n%s", apply, f.counter.per(f.n), t.report(apply.wall))
	job, err = servicecidr.NewJob(tools, f.moveOfServices(form))
	if err != nil {
		return apply, finish, err
	}
	*t = timing{}
	f.counter.reset()
	stop = clock()
	if err := job.Finish(ctx, runner); err != nil {
		return apply, finish, fmt.Errorf("finish: %w", err)
	}
	finish = stop()
	fmt.Printf("  replumb finish: %s; per Service: %s\n%s", finish, f.counter.per(f.n), t.report(finish.wall))
	return apply, finish, nil
}
