package lab

import (
	"context"
	_ "embed"
	"fmt"
	"net/netip"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Where MetalLB is, and what it is of.
const (
	metalLBNamespace  = "metallb-system"
	metalLBController = "metallb-controller"
	metalLBSpeaker    = "metallb-speaker"
)

// The part of the first network, between machines and its end, that MetalLB has.
const (
	firstLoadBalanced = 56
	lastLoadBalanced  = 60
)

// LoadBalancers are the first and the last address that MetalLB gives to Services.
func (t Topology) LoadBalancers() (first, last netip.Addr) {
	network := t.Networks[0].CIDR
	return nth(network, firstLoadBalanced), nth(network, lastLoadBalanced)
}

//go:embed metallb.yaml
var metalLBTemplate string

// installMetalLB returns when it is ready on every node.
func (l Addons) installMetalLB(ctx context.Context, o Options) error {
	first, last := l.Topology.LoadBalancers()
	err := l.installAddon(ctx, MetalLB, metalLBTemplate, map[string]any{
		"Namespace": metalLBNamespace, "Controller": imageRef(metalLBController), "Speaker": imageRef(metalLBSpeaker),
		"First": first, "Last": last,
	})
	if err != nil || len(l.with(Worker)) == 0 {
		return err
	}
	if err := l.waitDeployments(ctx, metalLBNamespace, "controller"); err != nil {
		return err
	}
	err = until(ctx, "MetalLB's speakers", func(ctx context.Context) error {
		d, err := l.Client().AppsV1().DaemonSets(metalLBNamespace).Get(ctx, "speaker", metav1.GetOptions{})
		if err != nil {
			return err
		}
		return daemonsReady(d, len(l.with(Worker)))
	})
	if err == nil {
		o.say("MetalLB gives Services %s to %s", first, last)
	}
	return err
}

func daemonsReady(d *appsv1.DaemonSet, nodes int) error {
	if int(d.Status.NumberReady) < nodes {
		return fmt.Errorf("%d of %d are ready", d.Status.NumberReady, nodes)
	}
	return nil
}
