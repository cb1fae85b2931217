package nodecleanup

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// narrow adds the ranges of its pods to a network that only files tell apart.
func (h Host) narrow(n NetworkTraces) NetworkTraces {
	if n.fileOnly() {
		n.Within = h.Pods
	}
	return n
}

// gives reports whether a plugin's IPAM is the network's, with all ranges within its own. One
// without a range is unknown (plugins/ipam/host-local in github.com/containernetworking/plugins).
func (n NetworkTraces) gives(ipam json.RawMessage) bool {
	var one struct {
		Type   string
		Subnet string
		Ranges [][]struct{ Subnet string }
	}
	if len(ipam) == 0 || json.Unmarshal(ipam, &one) != nil || one.Type != n.IPAM {
		return false
	}
	var all []string
	if one.Subnet != "" {
		all = append(all, one.Subnet)
	}
	for _, set := range one.Ranges {
		for _, r := range set {
			all = append(all, r.Subnet)
		}
	}
	return len(all) > 0 && !slices.ContainsFunc(all, func(text string) bool { return !n.within(text) })
}

func (n NetworkTraces) within(text string) bool {
	r, err := netip.ParsePrefix(text)
	return err == nil && slices.ContainsFunc(n.Within, func(pods netip.Prefix) bool {
		return pods.Bits() <= r.Bits() && pods.Contains(r.Addr())
	})
}

// ofPods adds the marks of rules for pods: ipMasq and portmap comment with the names of
// configuration and pod (FormatComment in pkg/utils and plugins/meta/portmap of
// github.com/containernetworking/plugins).
func (n NetworkTraces) ofPods(nets []string) NetworkTraces {
	n.Comments = nil
	for _, net := range nets {
		n.Comments = append(n.Comments, fmt.Sprintf("name: %q id: ", net), fmt.Sprintf("dnat name: %q id: ", net))
	}
	return n
}

// podChain is a chain for one pod (FormatChainName in pkg/utils/utils.go, same place), unlike
// portmap's common ones.
var podChain = regexp.MustCompile(`^CNI-(DN-)?[0-9a-f]{16,}$`)

// ledTo is the chain of a pod that a rule leads to, as iptables-save writes it; empty, if to none.
func (n NetworkTraces) ledTo(rule string) string {
	if !n.fileOnly() {
		return ""
	}
	words := strings.Fields(rule)
	i := slices.Index(words, "-j")
	if i < 0 || i+1 >= len(words) || !podChain.MatchString(words[i+1]) {
		return ""
	}
	return words[i+1]
}
