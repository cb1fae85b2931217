package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/apitest"
	"github.com/replumb/replumb/internal/testing/fakekubelet"
)

const namespace = "bench"

// fleet is a cluster full of Deployments.
type fleet struct {
	options

	server *apitest.Server
	nodes  *fakekubelet.Fleet

	mu sync.Mutex
	// quick has pods start at once: the first pods are not what is measured.
	quick bool
	drawn map[string][]time.Duration // of the pods that were measured, by Deployment
}

func (f *fleet) startUpOf(pod *corev1.Pod) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.quick {
		return 0
	}
	took := f.startUp(pod.Name)
	if app := pod.Labels["app"]; app != "" {
		f.drawn[app] = append(f.drawn[app], took)
	}
	return took
}

func (f *fleet) slow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quick, f.drawn = false, map[string][]time.Duration{}
}

// fill makes nodes, a pool, Deployments with a budget each, and waits for their pods.
func (f *fleet) fill(ctx context.Context) error {
	pool := calico.Empty("IPPool", "default")
	pool.Object["spec"] = map[string]any{"cidr": "10.244.0.0/16", "vxlanMode": "CrossSubnet", "natOutgoing": true}
	if err := f.server.Create(ctx, pool); err != nil {
		return err
	}
	if err := f.server.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	at := netip.MustParseAddr("192.0.2.1")
	for i := range f.options.nodes {
		if err := f.nodes.Node(ctx, fmt.Sprintf("node-%d", i), at); err != nil {
			return err
		}
		at = at.Next()
	}
	eg, ectx := errgroup.WithContext(ctx)
	eg.SetLimit(8)
	for i := range f.deployments {
		eg.Go(func() error { return f.deploy(ectx, fmt.Sprintf("app-%d", i)) })
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	return wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, func(ctx context.Context) (bool, error) {
		all := &appsv1.DeploymentList{}
		err := f.server.List(ctx, all)
		incomplete := func(d appsv1.Deployment) bool { return int(d.Status.AvailableReplicas) < f.replicas }
		return err == nil && !slices.ContainsFunc(all.Items, incomplete), err
	})
}

func (f *fleet) deploy(ctx context.Context, name string) error {
	n, one := int32(f.replicas), intstr.FromString("30%")
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}}
	labels := &metav1.LabelSelector{MatchLabels: m.Labels}
	if err := f.server.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: m, Spec: policyv1.PodDisruptionBudgetSpec{Selector: labels, MaxUnavailable: &one},
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

// bounds are the shortest times in which what was measured could have been done, if no step lost a moment: by a Deployment
// that starts as many pods at once as its strategy allows (maxSurge 25 % rounded up and maxUnavailable 25 % rounded down),
// each in the place of the first that is ready, and ends with its last pods; and by as many Deployments at once as the
// migration may restart. ideal takes every pod to start in the mean of the times, drawn those that pods really took.
func (f *fleet) bounds() (ideal, drawn time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	places := (f.replicas+3)/4 + f.replicas/4
	var mean, real []time.Duration
	for _, all := range f.drawn {
		real = append(real, makespan(all, places)+f.ending)
		mean = append(mean, makespan(slices.Repeat([]time.Duration{(f.fastest + f.slowest) / 2}, len(all)), places)+f.ending)
	}
	slices.SortFunc(real, func(a, b time.Duration) int { return int(b - a) })
	return makespan(mean, f.parallel), makespan(real, f.parallel)
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

// timing keeps how long phases took.
type timing struct {
	phases []string
	took   map[string]float64
}

func (t *timing) take(e engine.Event) {
	switch e.Kind {
	case engine.PhaseDone:
		t.phases = append(t.phases, e.Phase)
		t.took[e.Phase] = e.Seconds
	case engine.StepFailed:
		fmt.Printf("  %s failed: %s\n", e.Step, e.Error)
	}
}

func (t *timing) String() string {
	var parts []string
	for _, p := range t.phases {
		parts = append(parts, fmt.Sprintf("%s %.1fs", p, t.took[p]))
	}
	return strings.Join(parts, ", ")
}
