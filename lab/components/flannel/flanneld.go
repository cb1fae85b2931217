package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan" // registers itself
	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
	"github.com/joho/godotenv"
)

// The defaults of flanneld's flags.
const (
	annotationPrefix = "flannel.alpha.coreos.com"
	netConfPath      = "/etc/kube-flannel/net-conf.json"
	subnetFile       = "/run/flannel/subnet.env"
	resyncSeconds    = 5
)

// bridgeFilter is there when iptables sees what a bridge passes on. Without it, the answer of a Service's pod to another pod
// of its node comes from an address that one never called.
const bridgeFilter = "/proc/sys/net/bridge/bridge-nf-call-iptables"

// flanneld runs with what kube-flannel.yml gives it until it is told to end. It leaves links, routes and rules where they are.
func flanneld(args []string) error {
	flags := flag.NewFlagSet("flanneld", flag.ContinueOnError)
	masquerade := flags.Bool("ip-masq", false, "translate the addresses of what leaves the pods' network")
	ofNodes := flags.Bool("kube-subnet-mgr", false, "take the range in the Node's podCIDR; required")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if !*ofNodes {
		return errors.New("--kube-subnet-mgr is required: there is no etcd of flannel's own in a lab")
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	manager, err := kube.NewSubnetManager(ctx, "", "", annotationPrefix, netConfPath, true)
	if err != nil {
		return fmt.Errorf("following the Nodes: %w", err)
	}
	config, err := manager.GetNetworkConfig(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", netConfPath, err)
	}
	if _, err := os.Stat(bridgeFilter); err != nil {
		return fmt.Errorf("br_netfilter is not loaded: %w", err)
	}
	var running sync.WaitGroup
	network, err := register(ctx, &running, manager, config)
	if err != nil {
		return err
	}
	if err := protect(ctx, config, network, *masquerade); err != nil {
		return err
	}
	lease := network.Lease()
	if err := manager.HandleSubnetFile(subnetFile, config, *masquerade, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return fmt.Errorf("writing %s: %w", subnetFile, err)
	}
	running.Go(func() { network.Run(ctx) })
	if err := manager.CompleteLease(ctx, lease, &running); err != nil {
		return fmt.Errorf("telling that the network is there: %w", err)
	}
	<-ctx.Done()
	running.Wait()
	return nil
}

// register makes the backend's link on the machine, and says on the Node where it is.
func register(
	ctx context.Context, running *sync.WaitGroup, manager subnet.Manager, config *subnet.Config,
) (backend.Network, error) {
	family, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return nil, err
	}
	var stored ipmatch.PublicIPOpts
	stored.PublicIP, stored.PublicIPv6 = manager.GetStoredPublicIP(ctx)
	link, err := ipmatch.LookupExtIface(stored.PublicIP, "", "", family, stored)
	if err != nil {
		return nil, fmt.Errorf("finding the link to other nodes: %w", err)
	}
	b, err := backend.NewManager(ctx, manager, link).GetBackend(config.BackendType)
	if err != nil {
		return nil, err
	}
	network, err := b.RegisterNetwork(ctx, running, config)
	if err != nil {
		return nil, fmt.Errorf("making the %s network: %w", config.BackendType, err)
	}
	return network, nil
}

// protect keeps flannel's rules in iptables.
func protect(ctx context.Context, config *subnet.Config, network backend.Network, masquerade bool) error {
	var rules iptables.IPTablesManager
	if err := rules.Init(ctx); err != nil {
		return fmt.Errorf("iptables: %w", err)
	}
	if masquerade {
		before, _ := godotenv.Read(subnetFile) // there is none at first
		err := rules.SetupAndEnsureMasqRules(ctx,
			config.Network, rangeIn(before, "FLANNEL_SUBNET"), rangeIn(before, "FLANNEL_NETWORK"),
			config.IPv6Network, ip.IP6Net{}, ip.IP6Net{}, network.Lease(), resyncSeconds, false)
		if err != nil {
			return fmt.Errorf("rules that translate addresses: %w", err)
		}
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resyncSeconds)
	return nil
}

// rangeIn is one in a file that flanneld wrote earlier; empty, if it is not there.
func rangeIn(file map[string]string, key string) ip.IP4Net {
	var n ip.IP4Net
	if err := n.UnmarshalJSON([]byte(`"` + file[key] + `"`)); err != nil {
		return ip.IP4Net{}
	}
	n.IP = n.Network().IP
	return n
}
