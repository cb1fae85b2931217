package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	migrateNodes "github.com/replumb/replumb/internal/migrations/nodes"
)

type nodes struct {
	*played
	kubectl  int
	parallel string
}

// ofNodes measures what replumb adds to the time that emptying nodes takes anyway: it moves the pods of many Deployments, each under a
// PodDisruptionBudget that lets one go, from old nodes to new ones. Then kubectl drain does the same to some of the nodes, one after the
// other, in the other direction.
func ofNodes(flags *flag.FlagSet) func(context.Context) error {
	f := nodes{played: &played{pool: map[string]any{"cidr": "10.244.0.0/16", "natOutgoing": true}, budget: intstr.FromInt32(1)}}
	f.flags(flags, 100, 30)
	flags.IntVar(&f.kubectl, "kubectl", 10, "how many nodes kubectl drain empties; its time for all is that for each times all")
	flags.StringVar(&f.parallel, "parallel", "100%", "spec.nodes.drain.parallel")
	return func(ctx context.Context) error {
		if f.replicas < 2 || f.kubectl < 1 || f.kubectl > f.nodes {
			return errors.New("-replicas has to be 2 at least, and -kubectl positive and at most -nodes")
		}
		return f.run(ctx, f.measure)
	}
}

// measure fills the old nodes, and empties them by replumb; then kubectl empties some of the new ones. A budget lets the next pod of a
// Deployment go when the one before is replaced, and a pod's replacement starts as it is told to end.
func (f nodes) measure(ctx context.Context) error {
	if err := f.fill(ctx, "old", netip.MustParseAddr("10.1.0.1")); err != nil {
		return err
	}
	if err := f.join(ctx, "new", netip.MustParseAddr("10.2.0.1")); err != nil {
		return err
	}
	pods := f.deployments * f.replicas
	fmt.Printf("%d pods of %d Deployments on %d nodes, one of each may go at a time; start-up %s to %s, ending %s\n",
		pods, f.deployments, f.nodes, f.fastest, f.slowest, f.ending)
	took, calls, err := f.replumb(ctx)
	if err != nil {
		return err
	}
	fmt.Printf("  RESULT replumb %s; %.2f requests for each pod\n", f.result(took, 1, f.deployments, 0), float64(calls)/float64(pods))
	some, err := f.kubectlDrains(ctx)
	if err != nil {
		return err
	}
	all := some.Seconds() / float64(f.kubectl) * float64(f.nodes)
	fmt.Printf("  RESULT kubectl drain of %d nodes, one after the other, %.1fs; of all %.0fs, which is %.1f times replumb's\n",
		f.kubectl, some.Seconds(), all, all/took.Seconds())
	return nil
}

// replumb moves all pods, and returns how long it drained and how many requests it made in all.
func (f nodes) replumb(ctx context.Context) (time.Duration, int, error) {
	config, counter := counted(f.server.Config)
	connected, err := cluster.Connect(config)
	if err != nil {
		return 0, 0, err
	}
	parallel := intstr.Parse(f.parallel)
	job, err := migrateNodes.NewJob(migration.Deps{Cluster: connected}, migrationOf(v1alpha1.MigrationSpec{Nodes: &v1alpha1.NodesSpec{
		Old: v1alpha1.NodeSet{CIDRs: []string{"10.1.0.0/16"}}, New: v1alpha1.NodeSet{CIDRs: []string{"10.2.0.0/16"}},
		Canary:    v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryDisabled},
		Drain:     v1alpha1.NodeDrainSpec{Parallel: &parallel},
		Terminate: v1alpha1.TerminateSpec{When: v1alpha1.TerminateAtFinish}, // machines are not what is measured
	}}))
	if err != nil {
		return 0, 0, err
	}
	f.slow()
	t := &timing{}
	survey, err := job.Apply(ctx, &engine.Runner{Sink: t.take})
	if err != nil {
		return 0, 0, fmt.Errorf("apply: %w", err)
	}
	if c := survey.Counts(); c.Moved != f.nodes || c.Total != f.nodes {
		return 0, 0, fmt.Errorf("apply emptied %d of %d nodes", c.Moved, c.Total)
	}
	fmt.Printf("  requests for each pod: %s\n", counter.per(f.deployments*f.replicas))
	return t.phase("drain"), counter.total(), nil
}

// kubectlDrains empties nodes as a shell loop does, back to the old ones, which take pods again.
func (f nodes) kubectlDrains(ctx context.Context) (time.Duration, error) {
	all := &corev1.NodeList{}
	if err := f.server.List(ctx, all); err != nil {
		return 0, err
	}
	for i := range all.Items {
		n := &all.Items[i]
		if n.Spec.Taints == nil {
			continue
		}
		n.Spec.Taints = nil
		if err := f.server.Update(ctx, n); err != nil {
			return 0, err
		}
	}
	kubectl := filepath.Join(os.Getenv("KUBEBUILDER_ASSETS"), "kubectl")
	began := time.Now()
	for i := range f.kubectl {
		cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", f.server.Kubeconfig, "drain", fmt.Sprintf("new-%d", i),
			"--ignore-daemonsets", "--delete-emptydir-data", "--timeout", "10m")
		if out, err := cmd.CombinedOutput(); err != nil {
			return 0, fmt.Errorf("kubectl drain: %w: %s", err, out[max(0, len(out)-500):])
		}
	}
	return time.Since(began), nil
}
