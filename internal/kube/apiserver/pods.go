package apiserver

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/readiness"
)

// FromPods reads Service ranges from the command lines of static API server pods in kube-system, as
// kubeadm and kOps make them, by host address.
//
// A host has none if they are uncertain: its pod is not ready, so it may run with another manifest,
// names no range, or is one of several that differ.
func FromPods(pods []corev1.Pod) map[netip.Addr][]netip.Prefix {
	found := map[netip.Addr][]netip.Prefix{}
	for i := range pods {
		p := &pods[i]
		host, err := netip.ParseAddr(p.Status.HostIP)
		if err != nil || !controlplane.APIServer.IsStatic(p) {
			continue
		}
		var ranges []netip.Prefix
		if ready, _ := readiness.Pod(p); ready && p.Status.Phase == corev1.PodRunning {
			ranges = CommandRanges(p)
		}
		if before, ok := found[host.Unmap()]; ok && !slices.Equal(before, ranges) {
			ranges = nil
		}
		found[host.Unmap()] = ranges
	}
	return found
}

// CommandRanges are the Service ranges on a pod's command line; nil without any.
func CommandRanges(p *corev1.Pod) []netip.Prefix {
	value, found := commandFlag(p, rangeFlag)
	if !found {
		return nil
	}
	ranges, err := parseRanges(value)
	if err != nil {
		return nil
	}
	return ranges
}

// commandFlag finds a flag, without its dashes, on a pod's command line. The last one counts.
func commandFlag(p *corev1.Pod, name string) (value string, found bool) {
	for _, c := range p.Spec.Containers {
		words := slices.Concat(c.Command, c.Args)
		for i, word := range words {
			if after, ok := strings.CutPrefix(word, "--"+name+"="); ok {
				value, found = after, true
			} else if word == "--"+name && i+1 < len(words) {
				value, found = words[i+1], true
			}
		}
	}
	return value, found
}

// Addresses are host:port of the kubernetes Service's endpoints, sorted.
func Addresses(endpoints []discoveryv1.EndpointSlice) []string {
	var all []string
	for i := range endpoints {
		s := &endpoints[i]
		if s.Namespace != metav1.NamespaceDefault || s.Labels[discoveryv1.LabelServiceName] != "kubernetes" {
			continue
		}
		port := httpsPort(s.Ports)
		for _, e := range s.Endpoints {
			for _, a := range e.Addresses {
				all = append(all, net.JoinHostPort(a, port))
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// httpsPort is the port named https, or the first one.
func httpsPort(ports []discoveryv1.EndpointPort) string {
	port := int32(6443)
	for i, p := range ports {
		if p.Port == nil {
			continue
		}
		if p.Name != nil && *p.Name == "https" {
			return strconv.Itoa(int(*p.Port))
		}
		if i == 0 {
			port = *p.Port
		}
	}
	return strconv.Itoa(int(port))
}
