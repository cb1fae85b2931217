package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/replumb/replumb/lab/haproxy"
	"github.com/replumb/replumb/lab/machine"
	"github.com/replumb/replumb/lab/workload"
)

// The programs of a load balancer.
const (
	APIBalancer        = "haproxy-api"
	IngressBalancer    = "haproxy-ingress"
	IngressTLSBalancer = "haproxy-ingress-tls"
)

const (
	ingressPort    = 80
	ingressTLSPort = 443
)

// balancing is one program of a load balancer: what it runs with, and the servers it leads to.
type balancing struct {
	program  string
	config   haproxy.Config
	backends []string
	render   func(haproxy.Config) ([]byte, error)
}

func configOf(program string) string { return "/etc/haproxy/" + program + ".cfg" }
func statsOf(program string) string  { return "/run/" + program + ".sock" }
func masterOf(program string) string { return "/run/" + program + "-master.sock" }

// balancings are what a load balancer does now: for all control planes, and for the workers of its network.
func (l Balancers) balancings(balancer *Member) []balancing {
	api := balancing{program: APIBalancer, backends: []string{haproxy.ControlPlanes}, render: haproxy.Config.API}
	api.config.Listen = apiServerPort
	for _, m := range l.with(ControlPlane) {
		api.config.Servers = append(api.config.Servers, haproxy.Server{Name: m.Name, Address: m.apiServer()})
	}
	all := []balancing{
		api,
		l.beforeIngress(balancer, IngressBalancer, ingressPort, workload.IngressNodePort),
		l.beforeIngress(balancer, IngressTLSBalancer, ingressTLSPort, workload.IngressTLSNodePort),
	}
	for i := range all {
		all[i].config.Stats = statsOf(all[i].program)
		all[i].config.State = "/run/" + all[i].program + ".state"
	}
	return all
}

// beforeIngress leads a port of a balancer to one of the ingress's on the workers of its network.
func (l Balancers) beforeIngress(balancer *Member, program string, port, nodePort uint16) balancing {
	b := balancing{program: program, backends: []string{haproxy.Local, haproxy.Any}, render: haproxy.Config.Ingress}
	b.config.Listen, b.config.HealthPort = port, workload.IngressHealthPort
	for _, m := range l.with(Worker) {
		if m.Network == balancer.Network {
			b.config.Servers = append(b.config.Servers, haproxy.Server{Name: m.Name, Address: netip.AddrPortFrom(m.Address, nodePort)})
		}
	}
	return b
}

// balancerPrograms have a master each, which starts another process to read its configuration again, and
// hands it the port: no client is refused meanwhile, and the process before it goes on with the connections it has.
func balancerPrograms() []machine.Program {
	var programs []machine.Program
	for _, name := range []string{APIBalancer, IngressBalancer, IngressTLSBalancer} {
		programs = append(programs, machine.Program{
			Name: name, Argv: []string{"haproxy", "-W", "-S", masterOf(name), "-f", configOf(name)},
		})
	}
	return programs
}

func (l Balancers) balancerFiles(m *Member) (map[string][]byte, error) {
	content := map[string][]byte{}
	for _, b := range l.balancings(m) {
		config, err := b.render(b.config)
		if err != nil {
			return nil, err
		}
		content[configOf(b.program)] = config
		content[b.config.State] = b.config.Handover(nil, b.backends...)
	}
	return content, nil
}

// balanceDeadline bounds a change of what balancers lead to; it takes a fraction of a second.
const balanceDeadline = 15 * time.Second

// rebalance has everything that leads connections to machines lead them to those there are now, as target groups of a cloud
// follow its machines. Connections that there are stay where they are.
func (l Balancers) rebalance(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, balanceDeadline)
	defer cancel()
	forwarder, err := l.Machine(l.Fabrics().forwarder())
	if err != nil {
		return err
	}
	if err := forwarder.Forward(ctx, l.ControlPlaneNodes().apiServers()); err != nil {
		return err
	}
	for _, m := range l.with(LoadBalancer) {
		on, err := l.Machine(m.Name)
		if err != nil {
			return err
		}
		for _, b := range l.balancings(m) {
			if err := b.apply(ctx, on); err != nil {
				return fmt.Errorf("%s on %s: %w", b.program, m.Name, err)
			}
		}
	}
	return nil
}

// apply has a balancer read its configuration again, unless that is as it was, and returns when it leads to the servers in it.
func (b balancing) apply(ctx context.Context, on *machine.Handle) error {
	config, err := b.render(b.config)
	if err != nil {
		return err
	}
	if has, err := on.ReadFile(ctx, configOf(b.program)); err == nil && bytes.Equal(has, config) {
		return nil
	}
	known, err := ask(ctx, on, b.config.Stats, "show servers state")
	if err != nil {
		return err
	}
	if err := on.WriteFile(ctx, b.config.State, b.config.Handover(known, b.backends...)); err != nil {
		return err
	}
	if err := on.WriteFile(ctx, configOf(b.program), config); err != nil {
		return err
	}
	if _, err := ask(ctx, on, masterOf(b.program), "reload"); err != nil {
		return err
	}
	return until(ctx, "its new list of servers", func(ctx context.Context) error {
		statuses, err := b.statuses(ctx, on)
		if err != nil {
			return err
		}
		return b.leadsTo(statuses)
	})
}

func ask(ctx context.Context, on *machine.Handle, socket, command string) ([]byte, error) {
	path, err := on.Path(ctx, socket)
	if err != nil {
		return nil, err
	}
	return haproxy.Ask(ctx, path, command)
}

func (b balancing) statuses(ctx context.Context, on *machine.Handle) ([]haproxy.Status, error) {
	answer, err := ask(ctx, on, b.config.Stats, "show stat")
	if err != nil {
		return nil, err
	}
	return haproxy.Statuses(answer)
}

// leadsTo fails unless the statuses are of exactly the servers there shall be.
func (b balancing) leadsTo(statuses []haproxy.Status) error {
	var want, have []string
	for _, backend := range b.backends {
		for _, s := range b.config.Servers {
			want = append(want, backend+"/"+s.Name)
		}
	}
	for _, s := range statuses {
		have = append(have, s.Backend+"/"+s.Server)
	}
	slices.Sort(want)
	slices.Sort(have)
	if !slices.Equal(want, have) {
		return fmt.Errorf("it leads to %v", have)
	}
	return nil
}

// Balanced is what the load balancer of a network makes of its servers: APIBalancer or IngressBalancer.
func (l Balancers) Balanced(ctx context.Context, network, program string) ([]haproxy.Status, error) {
	for _, m := range l.with(LoadBalancer) {
		if m.Network != network {
			continue
		}
		on, err := l.Machine(m.Name)
		if err != nil {
			return nil, err
		}
		for _, b := range l.balancings(m) {
			if b.program == program {
				return b.statuses(ctx, on)
			}
		}
	}
	return nil, fmt.Errorf("network %q of lab %s has no %s", network, l.Topology.Name, program)
}

// errNoneReady is the state of a balancer that leads nowhere.
var errNoneReady = errors.New("no server is up")

// waitBalanced waits until a balancer has found a server up in a backend.
func (l Balancers) waitBalanced(ctx context.Context, network, program, backend string) error {
	return until(ctx, program+" of network "+network, func(ctx context.Context) error {
		statuses, err := l.Balanced(ctx, network, program)
		if err != nil {
			return err
		}
		for _, s := range statuses {
			if s.Backend == backend && s.Up {
				return nil
			}
		}
		return errNoneReady
	})
}
