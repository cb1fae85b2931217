package lab

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxyv1alpha1 "k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/lab/machine"
)

const (
	allocateFlag    = "--allocate-node-cidrs="
	clusterCIDRFlag = "--cluster-cidr="
	proxyProgram    = "kube-proxy"
)

// RestartControllerManagers does what the tooling of a cluster's operator does to change the range that nodes get theirs
// of: on one control plane after the other it restarts the controller manager with or without --allocate-node-cidrs and,
// unless there are no clusterCIDRs, with that --cluster-cidr. It returns when one of them leads.
func (l ControlPlaneNodes) RestartControllerManagers(ctx context.Context, allocate bool, clusterCIDRs ...netip.Prefix) error {
	clusterCIDRs = valid(clusterCIDRs...)
	since := time.Now()
	err := l.forControlPlanes(ctx, nil, func(ctx context.Context, _ *Member, m *machine.Handle) error {
		p, err := m.Program(ctx, controllerManagerProgram)
		if err != nil {
			return err
		}
		p.Argv = slices.Clone(p.Argv)
		for i, arg := range p.Argv {
			switch {
			case strings.HasPrefix(arg, allocateFlag):
				p.Argv[i] = allocateFlag + strconv.FormatBool(allocate)
			case strings.HasPrefix(arg, clusterCIDRFlag) && len(clusterCIDRs) > 0:
				p.Argv[i] = clusterCIDRFlag + commas(clusterCIDRs)
			}
		}
		return m.Run(ctx, p)
	})
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, restartDeadline)
	defer cancel()
	return l.waitLeader(within, since)
}

// waitLeader waits until a controller manager leads that has been started since.
func (l ControlPlaneNodes) waitLeader(ctx context.Context, since time.Time) error {
	client := l.Client()
	return until(ctx, "a controller manager to lead", func(ctx context.Context) error {
		lease, err := client.CoordinationV1().Leases(metav1.NamespaceSystem).Get(ctx, controllerManagerProgram, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if lease.Spec.AcquireTime == nil || lease.Spec.AcquireTime.Time.Before(since) {
			return fmt.Errorf("lease %s was acquired before the restart", lease.Name)
		}
		return nil
	})
}

// RestartProxies gives every kube-proxy other ranges of pods, one for each family, and restarts it. Rules stay in place meanwhile.
func (l Workers) RestartProxies(ctx context.Context, clusterCIDRs ...netip.Prefix) error {
	if l.Topology.ProxyPods {
		return l.restartProxyPods(ctx, clusterCIDRs)
	}
	for _, name := range l.NodeNames() {
		if err := l.restartProxy(ctx, name, clusterCIDRs); err != nil {
			return fmt.Errorf("kube-proxy on %s: %w", name, err)
		}
	}
	return nil
}

func (l Workers) restartProxy(ctx context.Context, node string, clusterCIDRs []netip.Prefix) error {
	return l.changeProxy(ctx, node, func(c *proxyv1alpha1.KubeProxyConfiguration) { c.ClusterCIDR = commas(clusterCIDRs) })
}

// RestartProxyIn gives the kube-proxy of a node, which is a program there, another mode, and restarts it.
func (l Workers) RestartProxyIn(ctx context.Context, node string, mode ProxyMode) error {
	return l.changeProxy(ctx, node, func(c *proxyv1alpha1.KubeProxyConfiguration) { c.Mode = proxyv1alpha1.ProxyMode(mode) })
}

func (l Workers) changeProxy(ctx context.Context, node string, change func(*proxyv1alpha1.KubeProxyConfiguration)) error {
	m, err := l.Machine(node)
	if err != nil {
		return err
	}
	data, err := m.ReadFile(ctx, proxyConfigPath)
	if err != nil {
		return err
	}
	var config proxyv1alpha1.KubeProxyConfiguration
	if err := yaml.Unmarshal(data, &config); err != nil {
		return fmt.Errorf("%s: %w", proxyConfigPath, err)
	}
	change(&config)
	if data, err = yaml.Marshal(config); err != nil {
		return err
	}
	if err := m.WriteFile(ctx, proxyConfigPath, data); err != nil {
		return err
	}
	p, err := m.Program(ctx, proxyProgram)
	if err != nil {
		return err
	}
	return m.Run(ctx, p)
}

// StopProxy ends the kube-proxy of a node for good. Its rules stay in place.
func (l Workers) StopProxy(ctx context.Context, node string) error {
	m, err := l.Machine(node)
	if err != nil {
		return err
	}
	return m.Stop(ctx, proxyProgram)
}

// StartProxy starts the kube-proxy of a node again, with the configuration that it had.
func (l Workers) StartProxy(ctx context.Context, node string) error {
	m, err := l.Machine(node)
	if err != nil {
		return err
	}
	return m.Run(ctx, kubeProxy(l.Binaries))
}
