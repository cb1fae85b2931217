package demo

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// addressTimeout is how long the API server may take to give out an address of a range that is ready.
const addressTimeout = 20 * time.Second

// deployControl starts the control's Service in a range of its own. There it is out of replumb's way: it moves once,
// the naive way, and not twice.
func (d *demo) deployControl(ctx context.Context) ([]traffic.Callee, error) {
	if err := d.openControlRange(ctx); err != nil {
		return nil, err
	}
	echo := workload.Echo{
		Namespace: controlNamespace, Name: controlService, PartOf: "control", Replicas: 2,
	}
	objects := []runtime.Object{workload.Namespace(controlNamespace), echo.Deployment()}
	if err := workload.Ensure(ctx, d.client, objects...); err != nil {
		return nil, err
	}
	if err := d.createService(ctx, echo.Service(), d.ControlRange); err != nil {
		return nil, err
	}
	return d.start(ctx, controlNamespace, []string{controlService}, d.ControlRange, objects)
}

func (d *demo) openControlRange(ctx context.Context) error {
	ranges := d.client.NetworkingV1().ServiceCIDRs()
	_, err := ranges.Create(ctx, &networkingv1.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "demo-control"},
		Spec:       networkingv1.ServiceCIDRSpec{CIDRs: []string{d.ControlRange.String()}},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create ServiceCIDR demo-control: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, addressTimeout)
	defer cancel()
	source := &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return ranges.List(ctx, o) },
		WatchFuncWithContext: ranges.Watch,
	}
	follow := cache.ToListWatcherWithWatchListSemantics(source, d.client)
	_, err = watchtools.UntilWithSync(ctx, follow, &networkingv1.ServiceCIDR{}, nil, func(e watch.Event) (bool, error) {
		r, ok := e.Object.(*networkingv1.ServiceCIDR)
		return ok && r.Name == "demo-control" &&
			meta.IsStatusConditionTrue(r.Status.Conditions, networkingv1.ServiceCIDRConditionReady), nil
	})
	if err != nil {
		return fmt.Errorf("wait for ServiceCIDR demo-control to be ready: %w", err)
	}
	return nil
}

// createService creates a Service at a free address of a range, as near its end as can be. A range that is ready is
// known to the API server's allocator a little later, and a free address may be taken meanwhile; so a refusal is tried
// again for a while.
func (d *demo) createService(ctx context.Context, service *corev1.Service, within netip.Prefix) error {
	var last error
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, addressTimeout, true, func(ctx context.Context) (bool, error) {
		last = d.tryCreateService(ctx, service, within)
		return last == nil, nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("create Service %s/%s: %w", service.Namespace, service.Name, last)
	}
	return err
}

func (d *demo) tryCreateService(ctx context.Context, service *corev1.Service, within netip.Prefix) error {
	address, err := d.freeAddress(ctx, within)
	if err != nil {
		return err
	}
	service.Spec.ClusterIP = address.String()
	_, err = d.client.CoreV1().Services(service.Namespace).Create(ctx, service, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// freeAddress finds the last address of a range that is free.
func (d *demo) freeAddress(ctx context.Context, within netip.Prefix) (netip.Addr, error) {
	held, err := d.client.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list addresses in use: %w", err)
	}
	taken := map[string]bool{}
	for i := range held.Items {
		taken[held.Items[i].Name] = true
	}
	address := lastAddress(within)
	for taken[address.String()] {
		address = address.Prev()
	}
	if !within.Contains(address) {
		return netip.Addr{}, fmt.Errorf("range %s has no free address", within)
	}
	return address, nil
}

// moveControlMidway waits until half of the shop has moved and then moves the control's Service the way one would
// without replumb: delete it, and create it again with an address of the new range.
func (d *demo) moveControlMidway(ctx context.Context) error {
	if err := d.awaitHalfMoved(ctx); err != nil {
		return fmt.Errorf("wait for half of the shop to move: %w", err)
	}
	services := d.client.CoreV1().Services(controlNamespace)
	present, err := services.Get(ctx, controlService, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read the control's Service: %w", err)
	}
	if err := services.Delete(ctx, controlService, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("delete the control's Service: %w", err)
	}
	again := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: controlNamespace, Name: controlService, Labels: present.Labels},
		Spec: corev1.ServiceSpec{
			Selector: present.Spec.Selector, Ports: present.Spec.Ports,
		},
	}
	return d.createService(ctx, again, d.To)
}

func (d *demo) awaitHalfMoved(ctx context.Context) error {
	services := d.client.CoreV1().Services(shopNamespace)
	source := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return services.List(ctx, o)
		},
		WatchFuncWithContext: services.Watch,
	}
	moved := map[string]bool{}
	half := (d.FurtherServices + len(workload.Shop(shopNamespace)) + 1) / 2
	follow := cache.ToListWatcherWithWatchListSemantics(source, d.client)
	_, err := watchtools.UntilWithSync(ctx, follow, &corev1.Service{}, nil, func(e watch.Event) (bool, error) {
		if service, ok := e.Object.(*corev1.Service); ok {
			address, err := netip.ParseAddr(service.Spec.ClusterIP)
			if err == nil && d.To.Contains(address) {
				moved[service.Name] = true
			}
		}
		return len(moved) >= half, nil
	})
	return err
}

// lastAddress is the last usable address of an IPv4 range, far from where others are given out.
func lastAddress(r netip.Prefix) netip.Addr {
	bytes := r.Masked().Addr().As4()
	for bit := r.Bits(); bit < 32; bit++ {
		bytes[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(bytes).Prev()
}
