package traffic

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// The ways into a cluster, from where there is nothing of it.
const (
	ByIngress    Via = "ingress by name"
	ByEdgeAPI    Via = "API by outside name"
	ByEdgeName   Via = "look-ups of outside name"
	ByRemembered Via = "ingress by remembered name"
	// ByTraefik goes through an ingress controller that watches Services, ByLoadBalancer to an address that a Service of type LoadBalancer
	// has, and ByAggregation to an API that API servers ask at a Service.
	ByTraefik      Via = "Traefik"
	ByLoadBalancer Via = "load balancer's address"
	ByAggregation  Via = "aggregated API"
)

// OutsideWays lists the ways into a cluster in the order in which they are shown.
func OutsideWays() []Via {
	return []Via{ByIngress, ByEdgeAPI, ByEdgeName, ByRemembered, ByTraefik, ByLoadBalancer, ByAggregation}
}

// Outside chooses every Source that is not in the cluster.
func Outside(s Source) bool { return s.Namespace == outsideNamespace }

// outsideNamespace is what a Source outside has in place of one.
const outsideNamespace = "outside"

// Outpost is a machine that people use a cluster from without being in it.
type Outpost struct {
	Name string
	// Command prepares a command there.
	Command func(ctx context.Context, argv ...string) (*exec.Cmd, error)
	// Client is the path there of the probing client (lab/images/client), Token and CA those of files by which the API server and
	// it know each other.
	Client, Token, CA string
}

// outsideTimeout is how long people wait for an answer.
const outsideTimeout = probe.Duration(5 * time.Second)

// CallEdge returns the calls that are made from outside: to the ingress, for each path, and to the API, by names that are
// looked up each time, over a connection that is new each time.
func CallEdge(o Outpost, ingress, api string, rates Rates, paths ...string) Calls {
	calls := Calls{Namespace: outsideNamespace, Targets: map[Via][]probe.Target{
		ByEdgeAPI: {{
			Name: APIService, Kind: probe.API, Address: hostPort(api, outsideAPIPort), Rate: rates.Request, Timeout: outsideTimeout,
			Path: outsideAPIPath, TokenFile: o.Token, CAFile: o.CA,
		}},
		ByEdgeName: {{Name: ingress, Kind: probe.DNS, Address: ingress + ".", Rate: rates.LookUp, Timeout: outsideTimeout}},
	}}
	for _, path := range paths {
		calls.Targets[ByIngress] = append(calls.Targets[ByIngress], probe.Target{
			Name:    path,
			Kind:    probe.HTTP,
			Address: hostPort(ingress, outsideHTTPPort),
			Path:    path,
			Rate:    rates.Request,
			Timeout: outsideTimeout,
		})
	}
	return calls
}

// CallNeighbours returns the calls that are made from outside to what watches Services: to each path at an ingress controller's address, where
// the echo server of that name answers, to a Service at its load balancer's address, and to an aggregated API.
func CallNeighbours(traefik string, paths []string, rate float64, balanced Callee, balancedRate float64) Calls {
	calls := Calls{Namespace: outsideNamespace, Client: "neighbour", Targets: map[Via][]probe.Target{
		ByLoadBalancer: {{
			Name: balanced.Name, Kind: probe.HTTP, Address: hostPort(balanced.Address, outsideHTTPPort), Rate: balancedRate,
			Timeout: outsideTimeout, ExpectServer: balanced.Name,
		}},
	}}
	for _, path := range paths {
		calls.Targets[ByTraefik] = append(calls.Targets[ByTraefik], probe.Target{
			Name: path, Kind: probe.HTTP, Address: hostPort(traefik, outsideHTTPPort), Path: "/" + path + "/", Rate: rate,
			Timeout: outsideTimeout, ExpectServer: path,
		})
	}
	return calls
}

// AndAggregated adds requests for what an API server asks another one for.
func (c Calls) AndAggregated(o Outpost, api, path string, rate float64) Calls {
	c.Targets[ByAggregation] = append(c.Targets[ByAggregation], probe.Target{
		Name: path, Kind: probe.API, Address: hostPort(api, outsideAPIPort), Path: path, Rate: rate, Timeout: outsideTimeout,
		TokenFile: o.Token, CAFile: o.CA,
	})
	return c
}

// CallHosts returns the calls that are made from outside to hosts that ingresses know, over connections that are new each time: to the
// address that the name has at that moment, and to the one that it had as long as its time to live allows.
func CallHosts(rates Rates, path string, hosts ...string) Calls {
	calls := Calls{Namespace: outsideNamespace, Targets: map[Via][]probe.Target{}}
	for _, h := range hosts {
		target := probe.Target{
			Name: h, Kind: probe.HTTP, Address: hostPort(h, outsideHTTPPort), Path: path, Rate: rates.Request, Timeout: outsideTimeout,
		}
		calls.Targets[ByIngress] = append(calls.Targets[ByIngress], target)
		target.Remember = true
		calls.Targets[ByRemembered] = append(calls.Targets[ByRemembered], target)
	}
	return calls
}

// outsideAPIPath is something that an API server has to ask etcd for, and that who may look around may see.
const outsideAPIPath = "/api/v1/namespaces/default/services/kubernetes"

const (
	outsideAPIPort  = 6443
	outsideHTTPPort = 80
)

// AddOutside runs a client on a machine outside, when what it calls answers there, and follows what it reports until the
// watch is stopped, which ends it. A client that ends before is an error, as its output is gone with it.
func (w *Watch) AddOutside(ctx context.Context, o Outpost, calls Calls) error {
	calls = calls.at(w.share(1, calls))
	scout := newWatch(ctx, w.logs)
	err := scout.startOutside(o, calls)
	if err == nil {
		err = scout.Await(ctx, scoutTimeout, "what is called from outside to answer", All, steadyFor(wholeSeconds))
	}
	scout.Stop()
	if err != nil {
		return err
	}
	return w.startOutside(o, calls)
}

// wholeSeconds is how long everything must have answered before a client counts. The first second of one is but a part, in
// which it may have asked one node only.
const wholeSeconds = 2

// steadyFor holds when the last n seconds went without failures, and were whole.
func steadyFor(n int) func(probe.Series) bool {
	return func(s probe.Series) bool {
		if len(s) <= n {
			return false
		}
		for i := range n {
			if !Steady(s[:len(s)-i]) {
				return false
			}
		}
		return true
	}
}

func (w *Watch) startOutside(o Outpost, calls Calls) error {
	config, sources := calls.config(o.Name)
	data, err := json.Marshal(config)
	if err != nil {
		return err
	}
	cmd, err := o.Command(w.ctx, o.Client)
	if err != nil {
		return err
	}
	cmd.Env = append(cmd.Environ(), "CLIENT_CONFIG="+string(data))
	// When nothing listens any more, also because the listener was killed, it ends by what it writes.
	said, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	cmd.Stderr = cmd.Stdout // what is no report is an error
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start client on %s: %w", o.Name, err)
	}
	name := podName{calls.Namespace, o.Name + "/" + calls.client()}
	w.mu.Lock()
	w.outside[name] = &process{cmd: cmd, said: said}
	w.mu.Unlock()
	w.expect(name, sources)
	w.follow(name)
	return nil
}

// process is a client that is no pod. It is heard once.
type process struct {
	cmd  *exec.Cmd
	said io.ReadCloser
}

// errHeard is the end of what a process said.
var errHeard = errors.New("it has ended")

func (p *process) open(context.Context, podName) (io.ReadCloser, error) {
	if p.said == nil {
		return nil, errHeard
	}
	said := p.said
	p.said = nil
	return &ending{said, p.cmd}, nil
}

func (p *process) running(context.Context, podName) (bool, error) { return false, nil }

// ending waits for a process when nothing reads what it says any more.
type ending struct {
	io.Reader
	cmd *exec.Cmd
}

// Close ends the process.
func (e *ending) Close() error {
	_ = e.cmd.Process.Kill() // it may have ended by itself
	return e.cmd.Wait()
}
