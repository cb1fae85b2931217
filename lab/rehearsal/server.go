package rehearsal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/internal/network/cidr"
	"github.com/replumb/replumb/internal/testing/apitest"
)

// Node ports that API servers give out unless told otherwise.
const leastPort, greatestPort = 30000, 32767

// serviceRanges are those that the API servers of a snapshot have as their flag, in its order.
func serviceRanges(a *offline.Archive) ([]netip.Prefix, error) {
	for _, c := range a.Collections(func(schema.GroupResource) string { return "v1" }) {
		if c.Group != networkingv1.GroupName || c.Resource != "servicecidrs" {
			continue
		}
		if ranges, err := defaultOf(c.Objects); err != nil || len(ranges) > 0 {
			return ranges, err
		}
	}
	for _, s := range a.Servers() {
		if len(s.Ranges) > 0 {
			return s.Ranges, nil
		}
	}
	return nil, refusal(
		"take it with a user who may list ServiceCIDRs, or get /flagz: replumb rbac services --for view",
		"the snapshot does not tell the range of its Services",
	)
}

// defaultOf are the ranges of the default one of some ServiceCIDRs.
func defaultOf(all []json.RawMessage) ([]netip.Prefix, error) {
	for _, body := range all {
		r := &networkingv1.ServiceCIDR{}
		if err := json.Unmarshal(body, r); err != nil {
			return nil, fmt.Errorf("reading a ServiceCIDR: %w", err)
		}
		if r.Name != defaultRange {
			continue
		}
		var ranges []netip.Prefix
		for _, text := range r.Spec.CIDRs {
			p, err := netip.ParsePrefix(text)
			if err != nil {
				return nil, fmt.Errorf("ServiceCIDR %s: %w", r.Name, err)
			}
			ranges = append(ranges, p)
		}
		return ranges, nil
	}
	return nil, nil
}

// fitting refuses ranges that an API server on this machine cannot have.
func fitting(ranges []netip.Prefix) error {
	if ranges[0].Addr().Is6() {
		return refusal(
			"rehearse in a lab: replumb-lab up --ip-families IPv6",
			"the Services of the snapshot are of IPv6 first (%s), and the rehearsal's API server listens on IPv4", ranges[0],
		)
	}
	return nil
}

// flagOf is ranges as API servers take them.
func flagOf(ranges []netip.Prefix) string {
	var all []string
	for _, r := range ranges {
		all = append(all, r.String())
	}
	return strings.Join(all, ",")
}

// certified are the addresses that the certificate has: where kubernetes is, and where it may go.
func certified(ranges, to []netip.Prefix) []net.IP {
	var all []net.IP
	for _, p := range slices.Concat(ranges, to) {
		lowest, _ := cidr.Bounds(p)
		all = append(all, net.IP(lowest.AsSlice()))
	}
	return all
}

// flags are those of the API server beside its range.
func flags(in *inventory) map[string]string {
	all := map[string]string{
		// What is in the snapshot was admitted once, and those who make tokens, classes and runtimes are not here.
		"disable-admission-plugins": "ServiceAccount,PodSecurity,Priority,RuntimeClass",
		// No node of the real cluster is ever asked.
		"kubelet-preferred-address-types": kubeletsAt,
	}
	least, greatest := in.nodePorts()
	if least > 0 && (least < leastPort || greatest > greatestPort) {
		all["service-node-port-range"] = fmt.Sprintf("%d-%d", min(least, leastPort), max(greatest, greatestPort))
	}
	return all
}

// start runs the API server.
func start(assets string, ranges, to []netip.Prefix, in *inventory) (*apitest.Server, error) {
	opts := []apitest.Option{
		apitest.Assets(assets), apitest.WithoutEndpoints(), apitest.Hurried(), apitest.Names(certified(ranges, to)...),
	}
	for name, value := range flags(in) {
		opts = append(opts, apitest.Flag(name, value))
	}
	return apitest.Run(flagOf(ranges), opts...)
}

// cluster is the one that a rehearsal happens in.
type cluster struct {
	*apitest.Server
	front *front
	stop  func()
}

// open puts a front before the API server, and plays endpoints from now on.
func open(ctx context.Context, s *apitest.Server, kubelets map[string]json.RawMessage) (*cluster, error) {
	f, err := newFront(s, func(node string) json.RawMessage { return kubelets[node] })
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := &cluster{Server: s, front: f}
	done := make(chan struct{})
	e := &endpoints{client: s.Cluster}
	if err := e.begin(ctx); err != nil {
		cancel()
		f.close()
		return nil, err
	}
	go func() {
		defer close(done)
		e.play(ctx)
	}()
	c.stop = func() {
		cancel()
		<-done
		f.close()
	}
	return c, nil
}

// restart gives the API server other ranges, as an operator does. Requests wait meanwhile.
func (c *cluster) restart(ranges []netip.Prefix) error {
	c.front.hold()
	defer c.front.release()
	c.SetFlag("service-cluster-ip-range", flagOf(ranges))
	return c.Restart(func() error { return nil })
}

var errNoRange = errors.New("the Migration names no range to give the API servers")
