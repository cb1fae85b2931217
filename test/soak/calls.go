package main

import (
	"context"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
	"github.com/replumb/replumb/test/soak/model"
)

// callers is the namespace of clients that call what the cluster itself offers.
const callers = "callers"

// Clients by what they call: names last, addresses until finish takes them away.
const (
	byName    = "by-name"
	byAddress = "by-address"
	byNaive   = "naive"
)

// heardWithin is how long clients may take to report on a moment that has passed.
const heardWithin = 2 * time.Minute

// calls are clients on the nodes that last.
type calls struct {
	client kubernetes.Interface
	nodes  []string
	// addresses are those of the probed Services, and of the cluster's own, when the clients are started.
	mu     sync.Mutex
	groups map[string]*group
	// over are the requests and losses of groups that have ended, for who watches.
	over tally
}

// group are clients that were started together.
type group struct {
	watch *traffic.Watch
	from  time.Time
}

func rates() traffic.Rates { return traffic.Rates{Request: 8, Stream: 5, LookUp: 5} }

// by are the calls by some of the ways, made by clients of that name.
func by(client string, c traffic.Calls, ways ...traffic.Via) traffic.Calls {
	targets := map[traffic.Via][]probe.Target{}
	for _, via := range ways {
		targets[via] = c.Targets[via]
	}
	c.Client, c.Targets = client, targets
	return c
}

// named are the calls by name: they last for the whole run.
func named(addresses map[model.Key]string) []traffic.Calls {
	steady, own := all(addresses)
	return []traffic.Calls{by(byName, steady, traffic.ByName, traffic.ByLookUp), by(byName, own, traffic.ByAPIName)}
}

// addressed are the calls to addresses as they are now, which last until finish.
func addressed(addresses map[model.Key]string) []traffic.Calls {
	steady, own := all(addresses)
	return []traffic.Calls{
		by(byAddress, steady, traffic.ByOldAddress, traffic.ByStream),
		by(byAddress, own, traffic.ByAPIOldAddress, traffic.ByAPIKept, traffic.ByOldServer),
	}
}

// naive are the calls that the naive way must lose.
func naive(addresses map[model.Key]string) []traffic.Calls {
	steady, _ := all(addresses)
	return []traffic.Calls{by(byNaive, steady, traffic.ByName, traffic.ByOldAddress)}
}

func all(addresses map[model.Key]string) (steady, own traffic.Calls) {
	var callees []traffic.Callee
	for _, app := range model.SteadyApps() {
		callees = append(callees, traffic.Callee{Name: app, Address: addresses[model.Key{Namespace: model.Steady, Name: app}]})
	}
	kubernetes := addresses[model.Key{Namespace: metav1.NamespaceDefault, Name: traffic.APIService}]
	dns := addresses[model.Key{Namespace: metav1.NamespaceSystem, Name: traffic.DNSService}]
	return traffic.Call(model.Steady, callees, rates()).AndKeep(callees, rates()),
		traffic.CallAPI(callers, kubernetes, rates()).AndAsk(dns, rates())
}

// start has clients call from now on.
func (c *calls) start(ctx context.Context, name string, what ...traffic.Calls) error {
	watch, err := traffic.Start(ctx, c.client, c.nodes, what...)
	if err != nil {
		return err
	}
	if err := watch.Await(ctx, heardWithin, "a second without failures", traffic.All, traffic.Steady); err != nil {
		watch.Stop()
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.groups[name] = &group{watch: watch, from: time.Now().Truncate(time.Second).Add(time.Second)}
	return nil
}

// lived is what the clients of that name lived through since they were asked last, which is what they have reported of.
func (c *calls) lived(ctx context.Context, name string, kills []time.Time) (tally, error) {
	c.mu.Lock()
	g := c.groups[name]
	c.mu.Unlock()
	to := time.Now().Truncate(time.Second)
	if err := g.watch.Await(ctx, heardWithin, "traffic "+name, traffic.All, traffic.Until(to)); err != nil {
		return tally{}, err
	}
	got := count(g.watch.Snapshot(), g.from, to, kills)
	c.mu.Lock()
	defer c.mu.Unlock()
	g.from = to
	c.over.add(got)
	return got, nil
}

// sofar are the requests of all clients until now, without waiting for any, as progress shows them.
func (c *calls) sofar(kills []time.Time) tally {
	c.mu.Lock()
	defer c.mu.Unlock()
	total := c.over
	for _, g := range c.groups {
		total.add(count(g.watch.Snapshot(), g.from, time.Now(), kills))
	}
	return total
}

// end takes clients away, once what they lived through was asked for.
func (c *calls) end(ctx context.Context, name string) error {
	c.mu.Lock()
	g := c.groups[name]
	delete(c.groups, name)
	c.mu.Unlock()
	g.watch.Stop()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
	for _, namespace := range []string{model.Steady, callers} {
		pods, err := c.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if !strings.HasPrefix(p.Name, name+"-") {
				continue
			}
			if err := c.client.CoreV1().Pods(namespace).Delete(ctx, p.Name, now); err != nil {
				return err
			}
		}
	}
	return nil
}

// stop ends following, when the run does.
func (c *calls) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range c.groups {
		g.watch.Stop()
	}
}
