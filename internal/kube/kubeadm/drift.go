package kubeadm

import (
	"net/netip"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Flag is what kubeadm gives a program of the control plane when it writes its manifest anew, and
// the field that says so: extraArgs win over networking. Both are empty for a flag that it leaves
// out (getControllerManagerCommand in k8s.io/kubernetes
// cmd/kubeadm/app/phases/controlplane/manifests.go).
func (c *Configuration) Flag(program, name string) (value, field string) {
	section := map[string]string{"kube-apiserver": "apiServer", "kube-controller-manager": "controllerManager"}[program]
	if value, given := c.extra(section, name); given {
		return value, section + ".extraArgs"
	}
	managed := program == "kube-controller-manager"
	switch {
	case managed && c.PodSubnet() == "":
		return "", ""
	case name == "service-cluster-ip-range" && c.ServiceSubnet() != "":
		return c.ServiceSubnet(), "networking.serviceSubnet"
	case name == "allocate-node-cidrs" && managed:
		return "true", "networking.podSubnet"
	case name == "cluster-cidr" && managed:
		return c.PodSubnet(), "networking.podSubnet"
	}
	return "", ""
}

// extra is the last value of a flag in extraArgs, a list in v1beta4 and an object before.
func (c *Configuration) extra(section, flag string) (value string, given bool) {
	args := c.doc.field(section, "extraArgs")
	if args == nil {
		return "", false
	}
	if args.Kind == yaml.MappingNode {
		n := fieldOf(args, flag)
		if n == nil {
			return "", false
		}
		return n.Value, true
	}
	for _, n := range args.Content {
		if name, is := fieldOf(n, "name"), fieldOf(n, "value"); name != nil && name.Value == flag && is != nil {
			value, given = is.Value, true
		}
	}
	return value, given
}

// SameRanges reports whether two values of a flag name the same ranges, in the same order. All that
// move count as one: at a gate, the one place has the old range and the other the new one.
func SameRanges(a, b string, moving []netip.Prefix) bool {
	return slices.Equal(settled(a, moving), settled(b, moving))
}

func settled(flag string, moving []netip.Prefix) (all []string) {
	for text := range strings.SplitSeq(flag, ",") {
		text = strings.TrimSpace(text)
		if p, err := netip.ParsePrefix(text); err == nil && slices.Contains(moving, p) {
			text = "moving"
		}
		all = append(all, text)
	}
	return slices.Compact(all)
}

// ClusterDNS are the addresses that a KubeletConfiguration names.
func ClusterDNS(file string, text []byte) (all []string, err error) {
	doc, err := read(file, text)
	if err != nil {
		return nil, err
	}
	if list := doc.field("clusterDNS"); list != nil {
		for _, n := range list.Content {
			all = append(all, n.Value)
		}
	}
	return all, nil
}
