package main

import (
	"context"
	"flag"
	"fmt"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations/podcidr"
)

type pods struct {
	*played
	parallel int
}

// ofPods measures what replumb adds to the time that restarting pods takes anyway: it moves the pods of many Deployments to another range.
func ofPods(flags *flag.FlagSet) func(context.Context) error {
	f := pods{played: &played{
		pool:   map[string]any{"cidr": "10.244.0.0/16", "vxlanMode": "CrossSubnet", "natOutgoing": true},
		budget: intstr.FromString("30%"),
	}}
	f.flags(flags, 200, 10)
	flags.IntVar(&f.parallel, "parallel", 20, "spec.podCIDR.roll.parallel")
	return func(ctx context.Context) error { return f.run(ctx, f.measure) }
}

// measure fills the cluster and moves its pods. A Deployment starts as many pods at once as its strategy allows: maxSurge 25 % rounded up
// and maxUnavailable 25 % rounded down.
func (f pods) measure(ctx context.Context) error {
	began := time.Now()
	if err := f.fill(ctx, "node", netip.MustParseAddr("192.0.2.1")); err != nil {
		return err
	}
	n := f.deployments * f.replicas
	fmt.Printf("%d pods of %d Deployments on %d nodes, made in %s; %d restart at once; start-up %s to %s, ending %s\n",
		n, f.deployments, f.nodes, time.Since(began).Round(time.Second), f.parallel, f.fastest, f.slowest, f.ending)
	config, counter := counted(f.server.Config)
	connected, err := cluster.Connect(config)
	if err != nil {
		return err
	}
	job, err := podcidr.NewJob(podcidr.Deps{Cluster: connected, Image: pull.Image{Name: "replumb"}}, migrationOf(v1alpha1.MigrationSpec{
		PodCIDR: &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}, Roll: v1alpha1.RollSpec{Parallel: f.parallel}},
		Batch:   v1alpha1.BatchSpec{Size: f.deployments, Settle: &metav1.Duration{}}, // waiting that the operator asks for is not measured
		Proof:   v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled},                 // played nodes run none
	}))
	if err != nil {
		return err
	}
	f.slow()
	t := &timing{}
	began = time.Now()
	survey, err := job.Apply(ctx, &engine.Runner{Sink: t.take})
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	whole := time.Since(began)
	if c := survey.Counts(); c.Moved != n || c.Total != n {
		return fmt.Errorf("apply moved %d of %d pods", c.Moved, c.Total)
	}
	fmt.Printf("  requests for each pod: %s\n%s  RESULT roll %s; apply %s; %.2f requests for each pod\n", counter.per(n), t.report(whole),
		f.result(t.phase("roll"), (f.replicas+3)/4+f.replicas/4, f.parallel, f.ending), whole.Round(100*time.Millisecond),
		float64(counter.total())/float64(n))
	return nil
}
