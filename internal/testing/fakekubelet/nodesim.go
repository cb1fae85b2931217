// Package fakekubelet plays the kubelets of many nodes, and what Calico does on them, on an API
// server that has no nodes: pods get addresses of the enabled pools, start, end, and tunnels move
// when their pool is disabled. It is for tests and measurements only.
package fakekubelet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/internal/network/calico"
	"github.com/replumb/replumb/internal/testing/watching"
)

// tunnelAnnotation is where Calico writes the address of a node's VXLAN tunnel.
const tunnelAnnotation = "projectcalico.org/IPv4VXLANTunnelAddr"

const (
	// retry is how soon what failed is tried again: a kubelet whose CNI plugin found no address,
	// for instance.
	retry = 50 * time.Millisecond
	// again is when tunnels are looked at although nothing has changed: their pools may have had no
	// address.
	again = time.Second
)

// Fleet is a number of nodes.
type Fleet struct {
	Client client.WithWatch
	// StartUp is how long a pod takes from being scheduled to being ready. Default: no time.
	StartUp func(*corev1.Pod) time.Duration
	// Ending is how long a pod takes to end.
	Ending time.Duration
	// Obstacle says why a pod cannot start at present, as a reason of a waiting container and a
	// message; empty reasons are none. Default: there never is one.
	Obstacle func(*corev1.Pod) (reason, message string)
	// Phase is what becomes of a pod once its containers run. Default: it goes on running.
	Phase func(*corev1.Pod) corev1.PodPhase
	// Message is the last words of the containers of a pod that ends. Default: its phase.
	Message func(*corev1.Pod) string
	// Addresses gives pods and tunnels theirs.
	Addresses Addresses

	mu    sync.Mutex
	known map[types.UID]stage
	work  sync.WaitGroup
}

// Addresses is Calico's address management.
type Addresses interface {
	// Take gives out an address of one of the pools.
	Take(ctx context.Context, pools []calico.Pool, u User) (netip.Addr, error)
	// Give takes back what was given out under a handle.
	Give(ctx context.Context, handle string) error
}

// User is what gets an address.
type User struct {
	Node, Handle string
	Attributes   map[string]string
}

type stage int

const (
	starting stage = iota + 1
	ending
)

// Node makes a node and marks it as ready.
func (f *Fleet) Node(ctx context.Context, name string, address netip.Addr) error {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if err := f.Client.Create(ctx, n); err != nil {
		return err
	}
	was := n.DeepCopy() // by patch: others that are played write to Nodes as well
	much := corev1.ResourceList{"cpu": resource.MustParse("1000"), "memory": resource.MustParse("1Ti"), "pods": resource.MustParse("1000")}
	n.Status = corev1.NodeStatus{
		Capacity: much, Allocatable: much,
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address.String()}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Simulated"}},
	}
	if err := f.Client.Status().Patch(ctx, n, client.MergeFrom(was)); err != nil {
		return err
	}
	// The API server taints nodes that are new, and the controller of nodes that is not here takes
	// the taint away.
	return f.Client.Patch(ctx, n, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"taints":null}}`)))
}

// Run plays until ctx ends.
func (f *Fleet) Run(ctx context.Context) {
	f.known = map[types.UID]stage{}
	f.work.Go(func() { wait.UntilWithContext(ctx, f.follow, retry) })
	pools := &unstructured.UnstructuredList{}
	pools.SetGroupVersionKind(calico.GroupVersion().WithKind("IPPoolList"))
	f.work.Go(func() { watching.Whenever(ctx, f.Client, f.tunnels, &corev1.NodeList{}, pools) })
	f.work.Wait()
}

// follow looks at every pod there is, and at every change, until the watch ends.
func (f *Fleet) follow(ctx context.Context) {
	all := &corev1.PodList{}
	if f.Client.List(ctx, all) != nil {
		return
	}
	for i := range all.Items {
		f.look(ctx, &all.Items[i])
	}
	w, err := f.Client.Watch(ctx, &corev1.PodList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: all.ResourceVersion}})
	if err != nil {
		return
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if pod, ok := e.Object.(*corev1.Pod); ok {
			f.look(ctx, pod)
		}
	}
}

// look begins what a pod is due for, once.
func (f *Fleet) look(ctx context.Context, pod *corev1.Pod) {
	if pod.Spec.NodeName == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case !pod.DeletionTimestamp.IsZero():
		if f.known[pod.UID] != ending {
			f.known[pod.UID] = ending
			f.later(ctx, f.Ending, func() error { return f.end(ctx, pod) })
		}
	case f.known[pod.UID] == 0 && pod.Status.PodIP == "":
		f.known[pod.UID] = starting
		var took time.Duration
		if f.StartUp != nil {
			took = f.StartUp(pod)
		}
		f.later(ctx, took, func() error { return f.start(ctx, pod) })
	}
}

// later does something after a time, and again until it works.
func (f *Fleet) later(ctx context.Context, after time.Duration, do func() error) {
	f.work.Go(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
			if err := do(); client.IgnoreNotFound(err) == nil {
				return
			}
			timer.Reset(retry)
		}
	})
}

// errObstacle says that a pod cannot start yet.
var errObstacle = errors.New("cannot start")

func (f *Fleet) start(ctx context.Context, pod *corev1.Pod) error {
	f.mu.Lock()
	gone := f.known[pod.UID] == ending
	f.mu.Unlock()
	if gone {
		return nil
	}
	if f.Obstacle != nil {
		if reason, message := f.Obstacle(pod); reason != "" {
			return errors.Join(errObstacle, f.status(ctx, pod, waiting(pod, reason, message)))
		}
	}
	address, err := f.address(ctx, pod)
	if err != nil {
		return errors.Join(err, f.status(ctx, pod, waiting(pod, "ContainerCreating", err.Error())))
	}
	phase := corev1.PodRunning
	if f.Phase != nil {
		phase = f.Phase(pod)
	}
	message := fmt.Sprint(phase)
	if f.Message != nil {
		message = f.Message(pod)
	}
	return f.status(ctx, pod, running(pod, phase, address, message))
}

// address of a pod on the host's network is the node's; no one looks at which that is.
func (f *Fleet) address(ctx context.Context, pod *corev1.Pod) (netip.Addr, error) {
	if pod.Spec.HostNetwork {
		return netip.MustParseAddr("192.0.2.1"), nil
	}
	user := User{
		Node: pod.Spec.NodeName, Handle: handle(pod),
		Attributes: map[string]string{"namespace": pod.Namespace, "pod": pod.Name, "node": pod.Spec.NodeName},
	}
	if _, local := f.Addresses.(ByNode); local {
		return f.Addresses.Take(ctx, nil, user)
	}
	pools, err := calico.LoadPools(ctx, f.Client)
	if err != nil {
		return netip.Addr{}, err
	}
	if pools = usable(pools, pod.Annotations); len(pools) == 0 {
		return netip.Addr{}, errors.New("no configured Calico pools")
	}
	return f.Addresses.Take(ctx, pools, user)
}

// ByNode are Addresses of nodes' own ranges: they look at no pools.
type ByNode interface{ ByNode() }

func handle(pod *corev1.Pod) string { return "k8s-pod-network." + string(pod.UID) }

func (f *Fleet) end(ctx context.Context, pod *corev1.Pod) error {
	if !pod.Spec.HostNetwork {
		if err := f.Addresses.Give(ctx, handle(pod)); err != nil {
			return err
		}
	}
	return f.Client.Delete(ctx, pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
}

func (f *Fleet) status(ctx context.Context, pod *corev1.Pod, st corev1.PodStatus) error {
	was := pod.DeepCopy()
	was.Status = corev1.PodStatus{}
	is := was.DeepCopy()
	is.Status = st
	return f.Client.Status().Patch(ctx, is, client.MergeFrom(was))
}

func waiting(pod *corev1.Pod, reason, message string) corev1.PodStatus {
	st := corev1.PodStatus{Phase: corev1.PodPending}
	for i := range pod.Spec.Containers {
		st.ContainerStatuses = append(st.ContainerStatuses, corev1.ContainerStatus{
			Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}},
		})
	}
	return st
}

func running(pod *corev1.Pod, phase corev1.PodPhase, address netip.Addr, message string) corev1.PodStatus {
	now := metav1.Now()
	ready := corev1.ConditionTrue
	if phase != corev1.PodRunning {
		ready = corev1.ConditionFalse
	}
	st := corev1.PodStatus{
		Phase: phase, PodIP: address.String(), PodIPs: []corev1.PodIP{{IP: address.String()}}, StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: ready, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: ready, LastTransitionTime: now},
		},
	}
	for i := range pod.Spec.Containers {
		c := corev1.ContainerStatus{
			Name: pod.Spec.Containers[i].Name, Image: pod.Spec.Containers[i].Image, Ready: phase == corev1.PodRunning,
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}},
		}
		if phase != corev1.PodRunning {
			c.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: now, Message: message}}
		}
		st.ContainerStatuses = append(st.ContainerStatuses, c)
	}
	return st
}
