package main

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
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

// fleet is a cluster whose old nodes are full of Deployments.
type fleet struct {
	options

	server   *apitest.Server
	kubelets *fakekubelet.Fleet

	mu sync.Mutex
	// quick has pods start at once: the first pods are not what is measured.
	quick bool
	drawn map[string]time.Duration // of the pods that were measured, by Deployment, one after the other
}

// startUpOf draws the start-up time of a pod from its name, evenly between fastest and slowest.
func (f *fleet) startUpOf(pod *corev1.Pod) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.quick {
		return 0
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.Name))
	took := f.fastest + time.Duration(h.Sum32()%1000)*(f.slowest-f.fastest)/1000
	f.drawn[pod.Labels["app"]] += took
	return took
}

func (f *fleet) slow() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.quick, f.drawn = false, map[string]time.Duration{}
}

// bounds are the shortest times in which what was measured could have been done, if no step lost a moment: a budget lets the next pod of a
// Deployment go when the one before is replaced, and all Deployments go on at the same time. A pod's replacement starts as it is told to
// end. ideal takes every pod to start in the mean of the times, drawn those that pods really took.
func (f *fleet) bounds() (ideal, drawn time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, d := range f.drawn {
		drawn = max(drawn, d)
	}
	return time.Duration(f.replicas) * (f.fastest + f.slowest) / 2, drawn
}

// fill makes old nodes, Deployments with a budget each and, once their pods are there, new nodes.
func (f *fleet) fill(ctx context.Context) error {
	pool := calico.Empty("IPPool", "default")
	pool.Object["spec"] = map[string]any{"cidr": "10.244.0.0/16", "natOutgoing": true}
	if err := f.server.Create(ctx, pool); err != nil {
		return err
	}
	if err := f.server.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
		return err
	}
	if err := f.join(ctx, "old", netip.MustParsePrefix(oldNetwork)); err != nil {
		return err
	}
	eg, ectx := errgroup.WithContext(ctx)
	eg.SetLimit(8)
	for i := range f.deployments {
		eg.Go(func() error { return f.deploy(ectx, fmt.Sprintf("app-%d", i)) })
	}
	if err := eg.Wait(); err != nil {
		return err
	}
	err := wait.PollUntilContextTimeout(ctx, time.Second, 20*time.Minute, true, func(ctx context.Context) (bool, error) {
		all := &appsv1.DeploymentList{}
		err := f.server.List(ctx, all)
		incomplete := func(d appsv1.Deployment) bool { return int(d.Status.AvailableReplicas) < f.replicas }
		return err == nil && !slices.ContainsFunc(all.Items, incomplete), err
	})
	if err != nil {
		return err
	}
	return f.join(ctx, "new", netip.MustParsePrefix(newNetwork))
}

func (f *fleet) join(ctx context.Context, side string, network netip.Prefix) error {
	at := network.Addr()
	for i := range f.nodes {
		at = at.Next()
		if err := f.kubelets.Node(ctx, fmt.Sprintf("%s-%d", side, i), at); err != nil {
			return err
		}
	}
	return nil
}

func (f *fleet) deploy(ctx context.Context, name string) error {
	n, one := int32(f.replicas), intstr.FromInt32(1)
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
