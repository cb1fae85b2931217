// Package traffic runs probing clients on every node of a cluster and collects what they report. Nothing that is
// missing is taken for a success.
package traffic

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/workload"
)

// Via is how a client reaches a Service.
type Via string

// The ways there are.
const (
	ByName       Via = "by name"
	ByOldAddress Via = "by old address"
	ByStream     Via = "over one long-lived connection"
	ByLookUp     Via = "DNS look-ups"
)

// The ways to the API server, and to a name server by an address of its own instead of the one in resolv.conf.
const (
	ByAPIName       Via = "API by name"
	ByAPIOldAddress Via = "API by old address"
	ByAPINewAddress Via = "API by new address"
	ByAPIKept       Via = "API over one kept connection"
	ByOldServer     Via = "DNS look-ups at the old server"
	ByNewServer     Via = "DNS look-ups at the new server"
)

// ByNewAddress is the way to a Service at the address that it has moved to: for clients that Watch.Add starts once it is there.
const ByNewAddress Via = "by new address"

// ByForbidden is a way that NetworkPolicies forbid: nothing must ever come back.
const ByForbidden Via = "although forbidden"

// Ways lists the ways to Services in the order in which they are shown.
func Ways() []Via { return []Via{ByName, ByOldAddress, ByStream, ByLookUp} }

// ClusterWays lists the ways to what the cluster itself offers to pods, in the order in which they are shown.
func ClusterWays() []Via {
	return []Via{ByAPIName, ByAPIOldAddress, ByAPINewAddress, ByAPIKept, ByOldServer, ByNewServer}
}

// Source is one probed target as seen from one node.
type Source struct {
	Namespace, Node, Service string
	Via                      Via
	// Client tells callers of one node and namespace apart: by the name in Calls, or of the pod if it is a roving one.
	Client string
}

// Target is the name under which a client reports on it.
func (s Source) Target() string { return s.Service + " " + string(s.Via) }

func (s Source) String() string {
	text := fmt.Sprintf("%s/%s %s from node %s", s.Namespace, s.Service, s.Via, s.Node)
	if s.Client != "" {
		text += ", client " + s.Client
	}
	return text
}

// All chooses every Source.
func All(Source) bool { return true }

// Permitted chooses every Source whose requests must be answered.
func Permitted(s Source) bool { return s.Via != ByForbidden }

// Forbidden chooses every Source whose requests must not be.
func Forbidden(s Source) bool { return s.Via == ByForbidden }

// Callee is a Service with the address it has before anything moves.
type Callee struct{ Name, Address string }

// Rates are requests per second and target.
type Rates struct{ Request, Stream, LookUp, Forbidden float64 }

// Calls are what the clients in a namespace probe.
type Calls struct {
	Namespace string
	// Client distinguishes the clients from others in the namespace; "client" if empty. Their pods are CLIENT-NODE.
	Client string
	// Labels and Annotations that the pods of the clients get beside their own.
	Labels, Annotations map[string]string
	Targets             map[Via][]probe.Target
	// Once has the clients ask name servers once, and wait as long as resolvers do: a datagram that is lost is a look-up that fails.
	Once bool
	// Sparse has the clients call the first Service of each way alone, where the machine does not carry more at the lowest rates.
	Sparse bool
	// OnHost has the clients use the network of their nodes, as what must outlive the pod network does.
	OnHost bool
}

// FromHost makes the calls from the nodes' own network. Nodes have several addresses, so none is expected to be seen.
func (c Calls) FromHost() Calls {
	c.OnHost = true
	return c.SeenAsAny()
}

// SeenAsAny takes any answer, whatever address the caller is seen to have: where networks give a node's address to pods of each other.
func (c Calls) SeenAsAny() Calls {
	for _, targets := range c.Targets {
		for i := range targets {
			targets[i].ExpectClientAddress = ""
		}
	}
	return c
}

// Call returns the calls to each Service by name and by address, each with a fresh connection. The names are short, as
// applications use them: the namespace is found through the search path of the pod's resolver.
func Call(namespace string, callees []Callee, rates Rates) Calls {
	calls := Calls{Namespace: namespace, Targets: map[Via][]probe.Target{}}
	for _, c := range callees {
		for v, host := range map[Via]string{ByName: c.Name, ByOldAddress: c.Address} {
			calls.Targets[v] = append(calls.Targets[v], probe.Target{
				Name: c.Name, Kind: probe.HTTP, Address: hostPort(host, workload.HTTPPort), Rate: rates.Request,
				ExpectClientAddress: probe.Self, ExpectServer: c.Name,
			})
		}
	}
	return calls
}

// AndKeep adds a long-lived connection to each Service's address, and look-ups of its name.
func (c Calls) AndKeep(callees []Callee, rates Rates) Calls {
	for _, callee := range callees {
		c.Targets[ByStream] = append(c.Targets[ByStream], probe.Target{
			Name: callee.Name, Kind: probe.Stream, Address: hostPort(callee.Address, workload.TCPPort), Rate: rates.Stream,
			ExpectClientAddress: probe.Self, ExpectServer: callee.Name,
		})
		c.Targets[ByLookUp] = append(c.Targets[ByLookUp], probe.Target{
			Name: callee.Name, Kind: probe.DNS, Address: callee.Name + "." + c.Namespace + ".svc.cluster.local.",
			Rate: rates.LookUp,
		})
	}
	return c
}

// patience is how long a forbidden request waits for an answer that must not come.
const patience = time.Second

// AndTry adds requests to each Service's address that a NetworkPolicy forbids to clients of these labels.
func (c Calls) AndTry(callees []Callee, rates Rates) Calls {
	for _, callee := range callees {
		c.Targets[ByForbidden] = append(c.Targets[ByForbidden], probe.Target{
			Name: callee.Name, Kind: probe.HTTP, Address: hostPort(callee.Address, workload.HTTPPort), Rate: rates.Forbidden,
			Timeout: probe.Duration(patience),
		})
	}
	return c
}

// As has the pods of the clients carry labels, by which NetworkPolicies tell them, and annotations.
func (c Calls) As(labels, annotations map[string]string) Calls {
	c.Labels, c.Annotations = labels, annotations
	return c
}

// The Services of the cluster itself, as Source.Service names them.
const (
	APIService = "kubernetes"
	DNSService = "kube-dns"
)

// APIPatience is how long requests to API servers may take: as long as client-go gives a TLS handshake alone (TLSHandshakeTimeout in
// k8s.io/client-go transport/cache.go; a connection may take 30 s).
const APIPatience = 10 * time.Second

const (
	apiName = "kubernetes.default.svc"
	apiPort = 443
	dnsPort = 53
)

// CallAPI returns the calls to the API server that pods make as their ServiceAccount, by name and at the address the
// "kubernetes" Service has, which is also called over one kept connection.
func CallAPI(namespace, address string, rates Rates) Calls {
	target := func(kind probe.TargetKind, host string, rate float64) []probe.Target {
		return []probe.Target{{
			Name: APIService, Kind: kind, Address: hostPort(host, apiPort), Rate: rate, Timeout: probe.Duration(APIPatience),
		}}
	}
	return Calls{Namespace: namespace, Client: "api-client", Targets: map[Via][]probe.Target{
		ByAPIName:       target(probe.API, apiName, rates.Request),
		ByAPIOldAddress: target(probe.API, address, rates.Request),
		ByAPIKept:       target(probe.APIKept, address, rates.Stream),
	}}
}

// CallNewAPI returns the calls to the address that the "kubernetes" Service has been given since: for clients that
// Watch.Add starts once it is there.
func CallNewAPI(namespace, address string, rates Rates) Calls {
	return Calls{Namespace: namespace, Client: "new-api-client", Targets: map[Via][]probe.Target{
		ByAPINewAddress: {
			{
				Name:    APIService,
				Kind:    probe.API,
				Address: hostPort(address, apiPort),
				Rate:    rates.Request,
				Timeout: probe.Duration(APIPatience),
			},
		},
	}}
}

// AndAsk adds look-ups over UDP, of a name that lasts, at the address that cluster DNS has.
func (c Calls) AndAsk(server string, rates Rates) Calls { return c.ask(ByOldServer, server, rates) }

// AndAskNew adds look-ups at the address that cluster DNS has been given since.
func (c Calls) AndAskNew(server string, rates Rates) Calls { return c.ask(ByNewServer, server, rates) }

func (c Calls) ask(v Via, server string, rates Rates) Calls {
	c.Targets[v] = append(c.Targets[v], probe.Target{
		Name: DNSService, Kind: probe.DNS, Address: apiName + ".cluster.local.", Resolver: hostPort(server, dnsPort),
		Rate: rates.LookUp,
	})
	return c
}

func hostPort(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

// Waits for things that take seconds when all is well.
const (
	readyTimeout = 3 * time.Minute
	scoutTimeout = time.Minute
)

// Add pins a further client to each node, when what it calls answers there, and follows what it reports too.
func (w *Watch) Add(ctx context.Context, client kubernetes.Interface, nodes []string, calls Calls) error {
	calls = calls.at(w.share(len(nodes), calls))
	if err := scout(ctx, client, nodes, calls); err != nil {
		return err
	}
	_, err := w.deploy(ctx, client, nodes, calls.client(), calls)
	return err
}

func (c Calls) client() string { return cmp.Or(c.Client, "client") }

// scout waits until every Service answers on every node. It does so with pods of its own: a connection to an address
// that kube-proxy has not programmed yet leaves an entry without translation in connection tracking, which for two
// minutes swallows later connections from the same port. The clients that count must never have made one.
func scout(ctx context.Context, client kubernetes.Interface, nodes []string, calls Calls) error {
	w := newWatch(ctx, podLogs{client})
	defer w.Stop()
	pods, err := w.deploy(ctx, client, nodes, "scout-"+calls.client(), calls)
	if err != nil {
		return err
	}
	if err := w.Await(ctx, scoutTimeout, "every Service of "+calls.Namespace+" to answer", Permitted, Steady); err != nil {
		return err
	}
	if err := w.Await(ctx, scoutTimeout, "what is forbidden in "+calls.Namespace+" to be denied", Forbidden, Denied); err != nil {
		return err
	}
	return remove(ctx, client, pods)
}

// remove deletes pods at once, without waiting until they are gone.
func remove(ctx context.Context, client kubernetes.Interface, pods []podName) error {
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, pod := range pods {
		if err := client.CoreV1().Pods(pod.namespace).Delete(ctx, pod.name, now); err != nil {
			return fmt.Errorf("remove client %s: %w", pod, err)
		}
	}
	return nil
}

// deploy starts a pod on each node and follows its log. The first one has the resolver that pods have by default, and others one that asks
// again sooner: a datagram that is lost makes the first one wait for five seconds.
func (w *Watch) deploy(
	ctx context.Context, client kubernetes.Interface, nodes []string, role string, calls Calls,
) ([]podName, error) {
	var names []podName
	var pods []runtime.Object
	for i, node := range nodes {
		config, sources := calls.config(node)
		ordinary := i == 0 && !calls.Once
		if ordinary {
			config = waitingForResolvers(config)
		}
		pod, err := workload.Client(calls.Namespace, clientPod(role, node), node, config)
		if err != nil {
			return nil, err
		}
		switch {
		case calls.Once:
			pod.Spec.DNSConfig = workload.AskOnce()
		case ordinary:
			pod.Spec.DNSConfig = nil
		}
		if calls.OnHost {
			pod.Spec.HostNetwork, pod.Spec.DNSPolicy = true, corev1.DNSClusterFirstWithHostNet
			pod.Spec.SecurityContext = nil // the setting would be the node's
		}
		maps.Copy(pod.Labels, calls.Labels)
		pod.Annotations = calls.Annotations
		name := podName{calls.Namespace, pod.Name}
		w.expect(name, sources)
		names, pods = append(names, name), append(pods, pod)
	}
	if err := workload.Ensure(ctx, client, pods...); err != nil {
		return nil, err
	}
	if err := workload.WaitReady(ctx, client, readyTimeout, pods...); err != nil {
		return nil, err
	}
	for _, name := range names {
		w.follow(name)
	}
	return names, nil
}

// resolverPatience has room for the two tries of a resolver's defaults, 5 s each (resolv.conf(5)).
const resolverPatience = probe.Duration(11 * time.Second)

// waitingForResolvers gives requests by name the time that resolvers take by default.
func waitingForResolvers(config probe.Config) probe.Config {
	for i, t := range config.Targets {
		if host, _, err := net.SplitHostPort(t.Address); t.Kind == probe.DNS || err == nil && net.ParseIP(host) == nil {
			config.Targets[i].Timeout = max(t.Timeout, resolverPatience)
		}
	}
	return config
}

// config is what the client on a node probes, and what each target's name stands for.
func (c Calls) config(node string) (probe.Config, map[string]Source) {
	var config probe.Config
	sources := map[string]Source{}
	for _, v := range slices.Concat(Ways(), ClusterWays(), OutsideWays(), []Via{ByNewAddress, ByForbidden}) {
		for _, target := range c.Targets[v] {
			from := Source{Namespace: c.Namespace, Node: node, Service: target.Name, Via: v, Client: c.Client}
			target.Name = from.Target()
			sources[target.Name] = from
			config.Targets = append(config.Targets, target)
		}
	}
	return config, sources
}
