package demo

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/replumb/replumb/internal/probe"
	"github.com/replumb/replumb/internal/workload"
)

// The two sides, each in a namespace of its own.
const (
	shopNamespace    = "shop"
	controlNamespace = "control"
	controlService   = "cart"
)

// via is how a client reaches a Service.
type via string

const (
	byName       via = "by name"
	byOldAddress via = "by old address"
	byStream     via = "over one long-lived connection"
	byLookUp     via = "DNS look-ups"
)

// ways lists them in the order in which they are shown.
func ways() []via { return []via{byName, byOldAddress, byStream, byLookUp} }

// source is one probed target as seen from one node.
type source struct {
	namespace, node, service string
	via                      via
}

func (s source) target() string { return s.service + " " + string(s.via) }

func (s source) String() string {
	return fmt.Sprintf("%s/%s %s from node %s", s.namespace, s.service, s.via, s.node)
}

func all(source) bool             { return true }
func notOldAddress(s source) bool { return s.via != byOldAddress }

// callee is a Service with the address it has before anything moves.
type callee struct {
	name, oldAddress string
}

// deploy brings up the shop, the control and a client of each on every node, and begins to read what clients report.
func (d *demo) deploy(ctx context.Context) error {
	if len(d.Images) > 0 {
		d.say("Loading images")
		if err := d.Cluster.Load(ctx, d.Images...); err != nil {
			return fmt.Errorf("load images: %w", err)
		}
	}
	d.say("Starting a shop with %d Services, and clients on %d nodes", d.FurtherServices+4, len(d.Cluster.NodeNames()))
	shop, err := d.deployShop(ctx)
	if err != nil {
		return err
	}
	control, err := d.deployControl(ctx)
	if err != nil {
		return err
	}
	d.logs = newCollector(ctx, podLogs(d.client))
	for _, side := range []struct {
		namespace string
		targets   map[via][]probe.Target
	}{{shopNamespace, d.shopTargets(shop)}, {controlNamespace, d.controlTargets(control)}} {
		if err := d.scout(ctx, side.namespace, side.targets); err != nil {
			return err
		}
		if _, err := d.deployClients(ctx, d.logs, "client", side.namespace, side.targets); err != nil {
			return err
		}
	}
	return nil
}

// scout waits until every Service answers on every node. It does so with pods of its own: a connection to an address
// that kube-proxy has not programmed yet leaves an entry without translation in connection tracking, which for two
// minutes swallows later connections from the same port. The clients that count must never have made one.
func (d *demo) scout(ctx context.Context, namespace string, targets map[via][]probe.Target) error {
	logs := newCollector(ctx, podLogs(d.client))
	defer logs.stop()
	pods, err := d.deployClients(ctx, logs, "scout", namespace, targets)
	if err != nil {
		return err
	}
	if err := logs.await(ctx, windowTimeout, "every Service of "+namespace+" to answer", all, steady); err != nil {
		return err
	}
	for _, pod := range pods {
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
		if err := d.client.CoreV1().Pods(namespace).Delete(ctx, pod.name, now); err != nil {
			return fmt.Errorf("remove scout %s: %w", pod, err)
		}
	}
	return nil
}

func (d *demo) deployShop(ctx context.Context) ([]callee, error) {
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
) ([]callee, error) {
	if err := workload.Ensure(ctx, d.client, objects...); err != nil {
		return nil, err
	}
	if err := workload.WaitReady(ctx, d.client, readyTimeout, objects...); err != nil {
		return nil, err
	}
	callees := make([]callee, 0, len(services))
	for _, name := range services {
		service, err := d.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read Service %s/%s: %w", namespace, name, err)
		}
		address, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil || !within.Contains(address) {
			return nil, fmt.Errorf("address %[3]q of Service %[1]s/%[2]s is not in %[4]s", namespace, name, service.Spec.ClusterIP, within)
		}
		callees = append(callees, callee{name: name, oldAddress: service.Spec.ClusterIP})
	}
	return callees, nil
}

// deployClients pins one client to each node and has its log followed by logs.
func (d *demo) deployClients(
	ctx context.Context, logs *collector, role, namespace string, targets map[via][]probe.Target,
) ([]podName, error) {
	var names []podName
	var pods []runtime.Object
	for _, node := range d.Cluster.NodeNames() {
		config, sources := clientConfig(namespace, node, targets)
		pod, err := workload.Client(namespace, role+"-"+node, node, config)
		if err != nil {
			return nil, err
		}
		name := podName{namespace, pod.Name}
		logs.expect(name, sources)
		names, pods = append(names, name), append(pods, pod)
	}
	if err := workload.Ensure(ctx, d.client, pods...); err != nil {
		return nil, err
	}
	if err := workload.WaitReady(ctx, d.client, readyTimeout, pods...); err != nil {
		return nil, err
	}
	for _, name := range names {
		logs.follow(name)
	}
	return names, nil
}

// clientConfig is what the client on a node probes, and what each target's name stands for.
func clientConfig(namespace, node string, targets map[via][]probe.Target) (probe.Config, map[string]source) {
	var config probe.Config
	sources := map[string]source{}
	for _, v := range ways() {
		for _, target := range targets[v] {
			from := source{namespace: namespace, node: node, service: target.Name, via: v}
			target.Name = from.target()
			sources[target.Name] = from
			config.Targets = append(config.Targets, target)
		}
	}
	return config, sources
}

// shopTargets are what each shop client calls. The names are short, as applications use them: the namespace is found
// through the search path of the pod's resolver.
func (d *demo) shopTargets(callees []callee) map[via][]probe.Target {
	targets := d.controlTargets(callees)
	for _, c := range callees {
		targets[byStream] = append(targets[byStream], probe.Target{
			Name: c.name, Kind: probe.Stream, Address: hostPort(c.oldAddress, workload.TCPPort), Rate: d.StreamRate,
			ExpectClientAddress: probe.Self,
		})
		targets[byLookUp] = append(targets[byLookUp], probe.Target{
			Name: c.name, Kind: probe.DNS, Address: c.name + "." + shopNamespace + ".svc.cluster.local.", Rate: d.LookUpRate,
		})
	}
	return targets
}

// controlTargets are the calls both sides are judged by.
func (d *demo) controlTargets(callees []callee) map[via][]probe.Target {
	targets := map[via][]probe.Target{}
	for _, c := range callees {
		for v, host := range map[via]string{byName: c.name, byOldAddress: c.oldAddress} {
			targets[v] = append(targets[v], probe.Target{
				Name: c.name, Kind: probe.HTTP, Address: hostPort(host, workload.HTTPPort), Rate: d.Rate,
				ExpectClientAddress: probe.Self,
			})
		}
	}
	return targets
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }
