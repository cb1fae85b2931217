package demo

import (
	"context"
	"fmt"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/lab/workload"
)

// The two sides, each in a namespace of its own.
const (
	shopNamespace    = "shop"
	controlNamespace = "control"
	controlService   = "cart"
)

func notOldAddress(s traffic.Source) bool { return s.Via != traffic.ByOldAddress }

// deploy brings up the shop, the control and a client of each on every node, and begins to read what clients report.
func (d *demo) deploy(ctx context.Context) error {
	if len(d.Images) > 0 {
		d.say("Loading images")
		if err := d.Cluster.Load(ctx, d.Images...); err != nil {
			return fmt.Errorf("load images: %w", err)
		}
	}
	d.say(
		"Starting a shop with %d Services and a control beside it, and clients on %d nodes",
		d.FurtherServices+len(workload.Shop(shopNamespace)),
		len(d.Cluster.NodeNames()),
	)
	shop, err := d.deployShop(ctx)
	if err != nil {
		return err
	}
	control, err := d.deployControl(ctx)
	if err != nil {
		return err
	}
	d.say("Measuring what this machine carries, and how clients are answered before anything moves")
	d.logs, err = traffic.Start(ctx, d.client, d.Cluster.NodeNames(), d.shopCalls(shop), d.controlCalls(control))
	return err
}

// shopCalls are what each shop client does; controlCalls are those of them that both sides are judged by.
func (d *demo) shopCalls(shop []traffic.Callee) traffic.Calls {
	calls := traffic.Call(shopNamespace, shop, d.rates()).AndKeep(shop, d.rates())
	calls.Sparse = true
	return calls
}

func (d *demo) controlCalls(control []traffic.Callee) traffic.Calls {
	return traffic.Call(controlNamespace, control, d.rates())
}

func (d *demo) rates() traffic.Rates {
	return traffic.Rates{Request: d.Rate, Stream: d.StreamRate, LookUp: d.LookUpRate}
}

func (d *demo) deployShop(ctx context.Context) ([]traffic.Callee, error) {
	objects := []runtime.Object{workload.Namespace(shopNamespace)}
	var names []string
	for _, echo := range workload.Shop(shopNamespace) {
		objects = append(objects, echo.Objects()...)
		names = append(names, echo.Name)
	}
	objects = append(objects, workload.FurtherServices(shopNamespace, d.FurtherServices)...)
	return d.start(ctx, shopNamespace, names, d.From, objects)
}

// start creates objects, waits until they are ready, and returns the Services as callees.
func (d *demo) start(
	ctx context.Context, namespace string, services []string, within netip.Prefix, objects []runtime.Object,
) ([]traffic.Callee, error) {
	if err := workload.Ensure(ctx, d.client, objects...); err != nil {
		return nil, err
	}
	if err := workload.WaitReady(ctx, d.client, readyTimeout, objects...); err != nil {
		return nil, err
	}
	callees := make([]traffic.Callee, 0, len(services))
	for _, name := range services {
		service, err := d.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read Service %s/%s: %w", namespace, name, err)
		}
		address, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil || !within.Contains(address) {
			return nil, fmt.Errorf("service %s/%s has address %q, which is not in %s", namespace, name, service.Spec.ClusterIP, within)
		}
		callees = append(callees, traffic.Callee{Name: name, Address: service.Spec.ClusterIP})
	}
	return callees, nil
}
