package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

const namespace = "bench"

// played is an API server with the real controllers and scheduler, and nodes that are played and full of Deployments, whose pods take some
// seconds to start.
type played struct {
	nodes, deployments, replicas int
	fastest, slowest, ending     time.Duration
	// pool is the spec of Calico's pool, budget how many pods of a Deployment may be away at a time.
	pool   map[string]any
	budget intstr.IntOrString

	server   *apitest.Server
	kubelets *fakekubelet.Fleet

	mu sync.Mutex
	// quick has pods start at once: the first pods are not what is measured.
	quick bool
	drawn map[string][]time.Duration // of the pods that were measured, by Deployment
}

func (f *played) flags(flags *flag.FlagSet, deployments, replicas int) {
	flags.IntVar(&f.nodes, "nodes", 100, "how many nodes; of benchmark nodes, how many old ones and how many new ones")
	flags.IntVar(&f.deployments, "deployments", deployments, "how many Deployments")
	flags.IntVar(&f.replicas, "replicas", replicas, "pods of each")
	flags.DurationVar(&f.fastest, "fastest", 2*time.Second, "shortest start-up time of a pod")
	flags.DurationVar(&f.slowest, "slowest", 5*time.Second, "longest start-up time of a pod")
	flags.DurationVar(&f.ending, "ending", 500*time.Millisecond, "how long a pod takes to end")
}

// run starts the API server and plays nodes while something is measured.
func (f *played) run(ctx context.Context, measure func(context.Context) error) (err error) {
	if f.nodes < 1 || f.deployments < 1 || f.replicas < 1 || f.slowest < f.fastest {
		return errors.New("every number has to be positive, and -slowest not below -fastest")
	}
	if f.server, err = apitest.Run("10.96.0.0/16", apitest.Calico(), apitest.Controllers()); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	f.quick = true
	f.kubelets = &fakekubelet.Fleet{
		Client: f.server, Addresses: &fakekubelet.Counting{}, StartUp: f.startUp, Ending: f.ending,
		Phase: func(pod *corev1.Pod) corev1.PodPhase {
			if pod.Spec.RestartPolicy == corev1.RestartPolicyNever { // a canary that calls
				return corev1.PodSucceeded
			}
			return corev1.PodRunning
		},
	}
	go func() { defer close(ended); f.kubelets.Run(ctx) }()
	err = measure(ctx)
	stop()
	<-ended
	return errors.Join(err, f.server.Stop())
}

// startUp draws the start-up time of a pod from its name, evenly between fastest and slowest.
func (f *played) startUp(pod *corev1.Pod) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.quick {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.Name))
	took := f.fastest + time.Duration(h.Sum32()%1000)*(f.slowest-f.fastest)/1000
	if app := pod.Labels["app"]; app != "" {
		f.drawn[app] = append(f.drawn[app], took)
	}
	return took
}

func (f *played) slow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quick, f.drawn = false, map[string][]time.Duration{}
}

// bounds are the shortest times in which what was measured could have been done, if no step lost a moment: each Deployment has pods start in
// so many places at once, each begun in the first that is free and after a while, and so many Deployments go on at the same time. ideal
// takes every pod to start in the mean of the times, drawn those that pods really took.
func (f *played) bounds(places, parallel int, after time.Duration) (ideal, drawn time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var mean, real []time.Duration
	for _, all := range f.drawn {
		real = append(real, makespan(all, places)+after)
		mean = append(mean, makespan(slices.Repeat([]time.Duration{(f.fastest + f.slowest) / 2}, len(all)), places)+after)
	}
	slices.SortFunc(real, func(a, b time.Duration) int { return int(b - a) })
	return makespan(mean, parallel), makespan(real, parallel)
}

// makespan is how long jobs take in so many places, each begun in the first place that is free.
func makespan(jobs []time.Duration, places int) time.Duration {
	busy := make([]time.Duration, places)
	for _, job := range jobs {
		first := slices.Index(busy, slices.Min(busy))
		busy[first] += job
	}
	return slices.Max(busy)
}

// result says how a time compares with its bounds.
func (f *played) result(took time.Duration, places, parallel int, after time.Duration) string {
	ideal, drawn := f.bounds(places, parallel, after)
	return fmt.Sprintf("%.1fs; bound %.1fs, ratio %.2f (bound of the start-up times drawn %.1fs, ratio %.2f)",
		took.Seconds(), ideal.Seconds(), took.Seconds()/ideal.Seconds(), drawn.Seconds(), took.Seconds()/drawn.Seconds())
}

// fill makes nodes, a pool and Deployments with a budget each, and waits for their pods.
func (f *played) fill(ctx context.Context, side string, first netip.Addr) error {
	pool := calico.Empty("IPPool", "default")
	pool.Object["spec"] = f.pool
	if err := f.server.Create(ctx, pool); err != nil {
		return err
	}
	if err := f.server.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	if err := f.join(ctx, side, first); err != nil {
		return err
	}
	if err := inParallel(f.deployments, 8, func(i int) error { return f.deploy(ctx, fmt.Sprintf("app-%d", i)) }); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, func(ctx context.Context) (bool, error) {
		all := &appsv1.DeploymentList{}
		err := f.server.List(ctx, all)
		incomplete := func(d appsv1.Deployment) bool { return int(d.Status.AvailableReplicas) < f.replicas }
		return err == nil && !slices.ContainsFunc(all.Items, incomplete), err
	})
}

// join adds nodes, at an address and those that follow it.
func (f *played) join(ctx context.Context, side string, at netip.Addr) error {
	for i := range f.nodes {
		if err := f.kubelets.Node(ctx, fmt.Sprintf("%s-%d", side, i), at); err != nil {
			return err
		}
		at = at.Next()
	}
	return nil
}

func (f *played) deploy(ctx context.Context, name string) error {
	n := int32(f.replicas)
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}
	labels := &metav1.LabelSelector{MatchLabels: m.Labels}
	if err := f.server.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: m, Spec: policyv1.PodDisruptionBudgetSpec{Selector: labels, MaxUnavailable: &f.budget},
	}); err != nil {
		return err
	}
	return f.server.Create(ctx, &appsv1.Deployment{ObjectMeta: m, Spec: appsv1.DeploymentSpec{
		Replicas: &n, Selector: labels, Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: m.Labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		},
	}})
}
