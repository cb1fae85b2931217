// Command bench-nodes measures what replumb adds to the time that emptying nodes takes anyway: it moves the pods of many Deployments, each
// under a PodDisruptionBudget that lets one go, from old nodes to new ones, on an API server with the real controllers and scheduler and
// played kubelets whose pods take some seconds to start. Then kubectl drain does the same to some of the nodes, one after the other, in
// the other direction. Run it by `make bench-nodes`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations/nodes"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/test/bench/requests"
)

const (
	oldNetwork, newNetwork = "10.1.0.0/16", "10.2.0.0/16"
	namespace              = "bench"
)

type options struct {
	nodes, deployments, replicas, kubectl int
	parallel                              string
	fastest, slowest, ending              time.Duration
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bench-nodes", flag.ContinueOnError)
	flags.IntVar(&o.nodes, "nodes", 100, "how many old nodes, and how many new ones")
	flags.IntVar(&o.deployments, "deployments", 100, "how many Deployments")
	flags.IntVar(&o.replicas, "replicas", 30, "pods of each")
	flags.IntVar(&o.kubectl, "kubectl", 10, "how many nodes kubectl drain empties; its time for all is that for each times all")
	flags.StringVar(&o.parallel, "parallel", "100%", "spec.nodes.drain.parallel")
	flags.DurationVar(&o.fastest, "fastest", 2*time.Second, "shortest start-up time of a pod")
	flags.DurationVar(&o.slowest, "slowest", 5*time.Second, "longest start-up time of a pod")
	flags.DurationVar(&o.ending, "ending", 500*time.Millisecond, "how long a pod takes to end")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.nodes < 1 || o.deployments < 1 || o.replicas < 2 || o.kubectl < 1 || o.kubectl > o.nodes || o.slowest < o.fastest {
		return o, errors.New(
			"every number has to be positive, -replicas 2 at least, -kubectl at most -nodes, and -slowest not below -fastest",
		)
	}
	return o, nil
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	log.SetLogger(logr.Discard()) // it would warn that nothing reads it
	server, err := apitest.Run("10.96.0.0/16", apitest.Calico(), apitest.Controllers())
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	f := &fleet{options: o, server: server, quick: true}
	f.kubelets = &fakekubelet.Fleet{Client: server, Addresses: &fakekubelet.Counting{}, StartUp: f.startUpOf, Ending: o.ending}
	go func() { defer close(ended); f.kubelets.Run(ctx) }()
	err = f.measure(ctx)
	stop()
	<-ended
	return errors.Join(err, server.Stop())
}

// measure fills the old nodes, and empties them by replumb; then kubectl empties some of the new ones.
func (f *fleet) measure(ctx context.Context) error {
	if err := f.fill(ctx); err != nil {
		return err
	}
	pods := f.deployments * f.replicas
	fmt.Printf("%d pods of %d Deployments on %d nodes, one of each may go at a time; start-up %s to %s, ending %s\n",
		pods, f.deployments, f.nodes, f.fastest, f.slowest, f.ending)
	took, calls, err := f.replumb(ctx)
	if err != nil {
		return err
	}
	ideal, drawn := f.bounds()
	fmt.Printf(
		"  RESULT replumb %.1fs; bound %.1fs, ratio %.2f (bound of the start-up times drawn %.1fs, ratio %.2f); %.2f requests for each pod\n",
		took.Seconds(),
		ideal.Seconds(),
		took.Seconds()/ideal.Seconds(),
		drawn.Seconds(),
		took.Seconds()/drawn.Seconds(),
		float64(calls)/float64(pods),
	)
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
func (f *fleet) replumb(ctx context.Context) (time.Duration, int, error) {
	counter := &requests.Counter{}
	counter.Reset()
	config := rest.CopyConfig(f.server.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counter.Next = next
		return counter
	})
	connected, err := cluster.Connect(config)
	if err != nil {
		return 0, 0, err
	}
	job, err := nodes.NewJob(migration.Tools{Cluster: connected}, f.migration())
	if err != nil {
		return 0, 0, err
	}
	f.slow()
	drained := 0.0
	survey, err := job.Apply(ctx, &engine.Runner{Sink: func(e engine.Event) {
		switch {
		case e.Kind == engine.PhaseDone && e.Phase == "drain":
			drained += e.Seconds
		case e.Kind == engine.StepFailed:
			fmt.Printf("  %s failed: %s\n", e.Step, e.Error)
		}
	}})
	if err != nil {
		return 0, 0, fmt.Errorf("apply: %w", err)
	}
	if c := survey.Counts(); c.Moved != f.nodes || c.Total != f.nodes {
		return 0, 0, fmt.Errorf("apply emptied %d of %d nodes", c.Moved, c.Total)
	}
	fmt.Printf("  requests for each pod: %s\n", counter.Per(f.deployments*f.replicas))
	return time.Duration(drained * float64(time.Second)), counter.Total(), nil
}

func (f *fleet) migration() *v1alpha1.Migration {
	parallel := intstr.Parse(f.parallel)
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: v1alpha1.MigrationSpec{Nodes: &v1alpha1.NodesSpec{
			Old: v1alpha1.NodeSet{CIDRs: []string{oldNetwork}}, New: v1alpha1.NodeSet{CIDRs: []string{newNetwork}},
			Canary:    v1alpha1.PodCanarySpec{Mode: v1alpha1.PodCanaryDisabled},
			Drain:     v1alpha1.NodeDrainSpec{Parallel: &parallel},
			Terminate: v1alpha1.TerminateSpec{When: v1alpha1.TerminateAtFinish}, // machines are not what is measured
		}},
	}
}

// kubectlDrains empties nodes as a shell loop does, back to the old ones, which take pods again.
func (f *fleet) kubectlDrains(ctx context.Context) (time.Duration, error) {
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
