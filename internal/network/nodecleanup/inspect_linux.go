package nodecleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
)

// Inspect finds, as problems, what keeps the node from running two networks and a switch to this
// one. It returns an error for the unknown.
func (h Host) Inspect(n NetworkTraces) (*TracesReport, error) {
	root, err := h.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	r := &TracesReport{}
	for _, look := range []func(*os.Root, NetworkTraces) ([]string, error){unready, runtimes, narrow, strict} {
		problems, err := look(root, n)
		if err != nil {
			return nil, fmt.Errorf("looking how the node stands: %w", err)
		}
		r.Problems = append(r.Problems, problems...)
	}
	return r, nil
}

func unready(root *os.Root, n NetworkTraces) ([]string, error) {
	var out []string
	_, err := staged(root, n)
	if none := (*NotReadyError)(nil); errors.As(err, &none) {
		out = append(out, none.Error())
	} else if err != nil {
		return nil, err
	}
	files, err := aheads(root)
	for _, f := range files {
		out = append(out, (&AheadError{f}).Error())
	}
	return out, err
}

// narrow is that pods would send packets that do not fit into the tunnel of their network.
func narrow(root *os.Root, n NetworkTraces) ([]string, error) {
	body, err := staged(root, n)
	if none := (*NotReadyError)(nil); errors.As(err, &none) {
		return nil, nil // which is a problem of its own
	}
	if err != nil {
		return nil, err
	}
	mtu := mtuOf(body)
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var out []string
	for _, l := range links {
		if a := l.Attrs(); l.Type() == "vxlan" && matches(n.Links, a.Name) && mtu > a.MTU {
			out = append(out, fmt.Sprintf(
				"the configuration of %s that lies ready gives pods an MTU of %d, and %s has only %d: large packets of pods would be lost",
				n.Name, mtu, a.Name, a.MTU,
			))
		}
	}
	return out, nil
}

// mtuOf is the largest MTU in a configuration, or 0 if it leaves that to the plugin.
func mtuOf(body []byte) int {
	type sized struct {
		MTU      any    `json:"mtu"` // a word, in what an installer has not filled in
		Delegate *sized `json:"delegate"`
	}
	list := struct {
		Plugins []sized `json:"plugins"`
	}{}
	if json.Unmarshal(body, &list) != nil {
		return 0
	}
	largest := 0
	for i := range list.Plugins {
		for p := &list.Plugins[i]; p != nil; p = p.Delegate {
			if mtu, ok := p.MTU.(float64); ok {
				largest = max(largest, int(mtu))
			}
		}
	}
	return largest
}

// tunnels carry IPv4 of a network between nodes. Packets between the networks come through the
// receiver's tunnel, from an address that the kernel reaches through the sender's. Flannel's
// bridges and Calico's interfaces have their own pods' addresses behind them.
func tunnels() []string {
	return []string{"flannel.[0-9]*", "flannel-wg", "flannel.ipip", "vxlan.calico", "tunl0", "wireguard.cali"}
}

// sysctls of IPv4 and an interface, of the network namespace of the thread that reads them.
const sysctls = "/proc/sys/net/ipv4/conf"

// strict finds rp_filter, by which the kernel drops packets that come through another interface
// than the answer would take (Documentation/networking/ip-sysctl.rst); IPv6 has none.
func strict(*os.Root, NetworkTraces) ([]string, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var out []string
	for _, l := range links {
		name := l.Attrs().Name
		if !matches(tunnels(), name) || l.Attrs().Flags&net.FlagUp == 0 {
			continue
		}
		strict, err := isStrict(name)
		if err != nil {
			return nil, err
		}
		if strict {
			out = append(out, strictOn(name))
		}
	}
	return out, nil
}

func reverse(of string) (int, error) {
	body, err := os.ReadFile(path.Join(sysctls, of, "rp_filter"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(body)))
}
