package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

const (
	// lookAgain is how often stale routes are looked at: pods end without any Node changing.
	lookAgain = 10 * time.Second
	// staleAtLeast is how long a stale route stays in any case: a pod that was just given an address of the range may not
	// have reported it yet.
	staleAtLeast = time.Minute
)

// table is where routes are: that of the kernel.
type table interface {
	// list are the routes that an agent has added, by what they lead to.
	list() (map[netip.Prefix]netip.Addr, error)
	set(to netip.Prefix, via netip.Addr) error
	remove(to netip.Prefix) error
}

// agent looks after one machine.
type agent struct {
	node, config string
	log          *slog.Logger
	table        table
	nodes        listers.NodeLister
	pods         func(context.Context) ([]netip.Addr, error)
	since        staleTimes
}

// staleTimes says since when a route leads to a range that its node has no more.
type staleTimes map[netip.Prefix]time.Time

func (a *agent) run(ctx context.Context, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactory(client, 0)
	nodes := factory.Core().V1().Nodes()
	changed := make(chan struct{}, 1)
	note := func() {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { note() }, UpdateFunc: func(any, any) { note() }, DeleteFunc: func(any) { note() },
	}); err != nil {
		return err
	}
	a.nodes = nodes.Lister()
	a.pods = func(ctx context.Context) ([]netip.Addr, error) { return podAddresses(ctx, client) }
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), nodes.Informer().HasSynced) {
		return nil // told to end
	}
	tick := time.NewTicker(lookAgain)
	defer tick.Stop()
	for {
		if err := a.reconcile(ctx, time.Now()); err != nil {
			a.log.Error("reconciling", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-tick.C:
		}
	}
}

// reconcile brings the machine to what the Nodes say.
func (a *agent) reconcile(ctx context.Context, now time.Time) error {
	all, err := a.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	want := map[netip.Prefix]netip.Addr{}
	var own []netip.Prefix
	for _, n := range all {
		ranges := podRanges(n) // none yet, perhaps
		if n.Name == a.node {
			own = ranges
			continue
		}
		for _, podCIDR := range ranges {
			if via := internalIP(n, podCIDR.Addr().Is4()); via.IsValid() {
				want[podCIDR] = via
			}
		}
	}
	return errors.Join(a.configure(own), a.route(ctx, want, own, now))
}

// podRanges are those of a Node, one for each family.
func podRanges(n *corev1.Node) []netip.Prefix {
	texts := n.Spec.PodCIDRs
	if len(texts) == 0 {
		texts = []string{n.Spec.PodCIDR}
	}
	var all []netip.Prefix
	for _, text := range texts {
		if p, err := netip.ParsePrefix(text); err == nil {
			all = append(all, p)
		}
	}
	return all
}

// internalIP is the Node's address of a family.
func internalIP(n *corev1.Node, four bool) netip.Addr {
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP && ip.Is4() == four {
			return ip
		}
	}
	return netip.Addr{}
}

// route adds the routes that are wanted, and removes those that nothing needs any more.
func (a *agent) route(ctx context.Context, want map[netip.Prefix]netip.Addr, own []netip.Prefix, now time.Time) error {
	have, err := a.table.list()
	if err != nil {
		return err
	}
	for to, via := range want {
		delete(a.since, to)
		if have[to] == via {
			continue
		}
		if err := a.table.set(to, via); err != nil {
			return err
		}
		a.log.Info("route", "to", to, "via", via)
	}
	stale := a.stale(want, have, now)
	if len(stale) == 0 {
		return nil
	}
	used, err := a.pods(ctx)
	if err != nil {
		return err
	}
	for _, to := range stale {
		given := slices.Contains(own, to)
		for other := range want {
			given = given || other.Overlaps(to)
		}
		inUse := slices.ContainsFunc(used, to.Contains)
		if !given && (inUse || now.Sub(a.since[to]) < staleAtLeast) {
			continue
		}
		if err := a.table.remove(to); err != nil {
			return err
		}
		delete(a.since, to)
		a.log.Info("no route any more", "to", to)
	}
	return nil
}

// stale are the routes to ranges that no Node has.
func (a *agent) stale(want, have map[netip.Prefix]netip.Addr, now time.Time) []netip.Prefix {
	var all []netip.Prefix
	for to := range have {
		if _, ok := want[to]; ok {
			continue
		}
		if _, known := a.since[to]; !known {
			a.since[to] = now
			a.log.Info("route is stale", "to", to)
		}
		all = append(all, to)
	}
	return all
}

// podAddresses are those of all pods that have not ended.
func podAddresses(ctx context.Context, client kubernetes.Interface) ([]netip.Addr, error) {
	pods, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, err
	}
	var all []netip.Addr
	for i := range pods.Items {
		p := &pods.Items[i]
		if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, address := range p.Status.PodIPs {
			if ip, err := netip.ParseAddr(address.IP); err == nil {
				all = append(all, ip)
			}
		}
	}
	return all, nil
}

// configure writes the CNI configuration, unless it is as it should be. A Node that is gone, or has no range yet, changes
// nothing.
func (a *agent) configure(ranges []netip.Prefix) error {
	if a.config == "" || len(ranges) == 0 {
		return nil
	}
	want, err := cniConfig(ranges)
	if err != nil {
		return err
	}
	have, err := os.ReadFile(a.config)
	if err == nil && bytes.Equal(have, want) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err != nil && a.left() {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(a.config), 0o755); err != nil {
		return err
	}
	// The runtime reads the folder whenever something in it changes: it must never see half a file, nor two of them.
	next := filepath.Join(filepath.Dir(a.config), ".next")
	if err := os.WriteFile(next, want, 0o600); err != nil {
		return err
	}
	if err := os.Rename(next, a.config); err != nil {
		return fmt.Errorf("writing the CNI configuration: %w", err)
	}
	a.log.Info("pods get addresses", "of", ranges)
	return nil
}

// left reports whether the node has another network's configuration: where its own is not there, it has been removed, and is not written again.
func (a *agent) left() bool {
	others, err := filepath.Glob(filepath.Join(filepath.Dir(a.config), "*.conflist"))
	return err == nil && len(others) > 0
}

// cniConfig gives pods an address of each range, on a link of its own to the node: unlike with a bridge, traffic
// between pods of one node then passes the node's firewall without br_netfilter.
func cniConfig(ranges []netip.Prefix) ([]byte, error) {
	type object = map[string]any
	var subnets [][]object
	var routes []object
	for _, p := range ranges {
		everything := "0.0.0.0/0"
		if p.Addr().Is6() {
			everything = "::/0"
		}
		subnets, routes = append(subnets, []object{{"subnet": p.String()}}), append(routes, object{"dst": everything})
	}
	return json.MarshalIndent(object{
		"cniVersion": "1.0.0",
		"name":       "lab",
		"plugins": []object{
			{
				"type": "ptp",
				"ipam": object{
					"type":   "host-local",
					"ranges": subnets,
					"routes": routes,
				},
			},
			{"type": "portmap", "capabilities": object{"portMappings": true}},
		},
	}, "", "  ")
}
