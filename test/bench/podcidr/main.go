// Command bench-podcidr measures what replumb adds to the time that restarting pods takes anyway: it moves the pods of many
// Deployments to another range, on an API server with the real controllers and played kubelets whose pods take some seconds
// to start. Run it by `make bench-podcidr`.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"net/http"
	"os"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/pull"
	"github.com/replumb/replumb/internal/migrations/podcidr"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
	"github.com/replumb/replumb/test/bench/requests"
)

type options struct {
	deployments, replicas, nodes, parallel int
	fastest, slowest, ending               time.Duration
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func parse(args []string) (options, error) {
	o := options{}
	flags := flag.NewFlagSet("bench-podcidr", flag.ContinueOnError)
	flags.IntVar(&o.deployments, "deployments", 200, "how many Deployments")
	flags.IntVar(&o.replicas, "replicas", 10, "pods of each")
	flags.IntVar(&o.nodes, "nodes", 100, "how many nodes")
	flags.IntVar(&o.parallel, "parallel", 20, "spec.podCIDR.roll.parallel")
	flags.DurationVar(&o.fastest, "fastest", 2*time.Second, "shortest start-up time of a pod")
	flags.DurationVar(&o.slowest, "slowest", 5*time.Second, "longest start-up time of a pod")
	flags.DurationVar(&o.ending, "ending", 500*time.Millisecond, "how long a pod takes to end")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if o.deployments < 1 || o.replicas < 1 || o.nodes < 1 || o.parallel < 1 || o.slowest < o.fastest {
		return o, errors.New("every number has to be positive, and -slowest not below -fastest")
	}
	return o, nil
}

// startUp draws the start-up time of a pod from its name, evenly between fastest and slowest.
func (o options) startUp(name string) time.Duration {
	h := fnv.New32a()
	_, _ = h.Write([]byte(name))
	return o.fastest + time.Duration(h.Sum32()%1000)*(o.slowest-o.fastest)/1000
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
	f.nodes = &fakekubelet.Fleet{
		Client: server, Addresses: &fakekubelet.Counting{}, StartUp: f.startUpOf, Ending: o.ending,
		Phase: func(pod *corev1.Pod) corev1.PodPhase {
			if pod.Spec.RestartPolicy == corev1.RestartPolicyNever { // a canary that calls
				return corev1.PodSucceeded
			}
			return corev1.PodRunning
		},
	}
	go func() { defer close(ended); f.nodes.Run(ctx) }()
	err = f.measure(ctx)
	stop()
	<-ended
	return errors.Join(err, server.Stop())
}

// measure fills the cluster and moves its pods.
func (f *fleet) measure(ctx context.Context) error {
	began := time.Now()
	if err := f.fill(ctx); err != nil {
		return err
	}
	pods := f.deployments * f.replicas
	fmt.Printf("%d pods of %d Deployments on %d nodes, made in %s; %d restart at once; start-up %s to %s, ending %s\n",
		pods, f.deployments, f.options.nodes, time.Since(began).Round(time.Second), f.parallel, f.fastest, f.slowest, f.ending)
	counter := &requests.Counter{}
	counter.Reset()
	config := rest.CopyConfig(f.server.Config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		counter.Next = next
		return counter
	})
	connected, err := cluster.Connect(config)
	if err != nil {
		return err
	}
	job, err := podcidr.NewJob(podcidr.Tools{Cluster: connected, Image: pull.Image{Name: "replumb"}}, f.migration())
	if err != nil {
		return err
	}
	f.slow()
	t := &timing{took: map[string]float64{}}
	began = time.Now()
	survey, err := job.Apply(ctx, &engine.Runner{Sink: t.take})
	if err != nil {
		return fmt.Errorf("apply: %w", err)
	}
	whole := time.Since(began)
	if c := survey.Counts(); c.Moved != pods || c.Total != pods {
		return fmt.Errorf("apply moved %d of %d pods", c.Moved, c.Total)
	}
	rolled, calls := t.took["roll"], counter.Total()
	fmt.Printf("  requests for each pod: %s\n  phases: %s\n", counter.Per(pods), t)
	ideal, drawn := f.bounds()
	fmt.Printf(
		"  RESULT roll %.1fs; bound %.1fs, ratio %.2f (bound of the start-up times drawn %.1fs, ratio %.2f); apply %s; %.2f requests for each pod\n",
		rolled,
		ideal.Seconds(),
		rolled/ideal.Seconds(),
		drawn.Seconds(),
		rolled/drawn.Seconds(),
		whole.Round(100*time.Millisecond),
		float64(calls)/float64(pods),
	)
	return nil
}

func (f *fleet) migration() *v1alpha1.Migration {
	return &v1alpha1.Migration{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "Migration"},
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		Spec: v1alpha1.MigrationSpec{PodCIDR: &v1alpha1.PodCIDRSpec{
			To: []string{"10.245.0.0/16"}, Roll: v1alpha1.RollSpec{Parallel: f.parallel},
		}, Batch: v1alpha1.BatchSpec{
			Size: f.deployments, Settle: &metav1.Duration{}, // waiting that the operator asks for is not measured
		}, Proof: v1alpha1.ProofSpec{Agents: v1alpha1.AgentsDisabled}}, // played nodes run none
	}
}
