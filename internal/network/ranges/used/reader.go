package used

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/internal/engine/lists"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/controlplane"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/references"
	"github.com/replumb/replumb/internal/network/nodeipam"
	"github.com/replumb/replumb/internal/network/podnetwork"
	"github.com/replumb/replumb/internal/network/ranges"
)

type reader struct {
	cluster *cluster.Cluster
	out     *ClusterRanges
	// said are the ranges, with the objects that say so.
	said []said
	// parts are the ranges of nodes, nodes and pods the addresses of these.
	parts, nodes, pods []held
}

type said struct {
	use     ranges.Use
	prefix  netip.Prefix
	field   string
	objects []string
}

// held is a range, or an address as one, with its object.
type held struct {
	prefix netip.Prefix
	object string
}

func (r *reader) notRead(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(r.out.NotRead, text) {
		r.out.NotRead = append(r.out.NotRead, text)
	}
}

// prefix reports what is no range: it may stand for one.
func (r *reader) prefix(text, object, field string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(strings.TrimSpace(text))
	if err != nil {
		r.notRead("%s of %s: %q is not a range", field, object, text)
	}
	return p.Masked(), err == nil
}

func (r *reader) add(use ranges.Use, text, object, field string) {
	p, ok := r.prefix(text, object, field)
	if !ok {
		return
	}
	i := slices.IndexFunc(r.said, func(s said) bool { return s.use == use && s.prefix == p && s.field == field })
	if i < 0 {
		r.said = append(r.said, said{use: use, prefix: p, field: field, objects: []string{object}})
		return
	}
	if !slices.Contains(r.said[i].objects, object) {
		r.said[i].objects = append(r.said[i].objects, object)
	}
}

func (r *reader) addAll(use ranges.Use, list, object, field string) {
	for text := range strings.SplitSeq(list, ",") {
		if strings.TrimSpace(text) != "" {
			r.add(use, text, object, field)
		}
	}
}

func (r *reader) takeNode(n *corev1.Node) {
	object := references.Name("Node", n)
	for _, text := range nodeipam.PodCIDRs(n) {
		if p, ok := r.prefix(text, object, "spec.podCIDRs"); ok {
			r.parts = append(r.parts, held{p, object})
		}
	}
	for _, address := range n.Status.Addresses {
		if a, err := netip.ParseAddr(address.Address); err == nil && address.Type == corev1.NodeInternalIP {
			r.nodes = append(r.nodes, held{netip.PrefixFrom(a, a.BitLen()), object})
		}
	}
}

func (r *reader) takeConfigMap(cm *corev1.ConfigMap) {
	object := references.Name("ConfigMap", cm)
	if cm.Namespace == metav1.NamespaceSystem && cm.Name == controlplane.KubeadmConfig {
		r.addAll(ranges.Pods, controlplane.PodSubnet(cm), object, "networking.podSubnet")
	}
	r.takeProxies(inventory.ProxiesIn(cm), "clusterCIDR")
	for _, c := range podnetwork.ConfiguredBy(cm) {
		r.add(ranges.Pods, c.Range, object, c.Key)
	}
}

func (r *reader) takeProxies(all []inventory.Proxy, field string) {
	for _, p := range all {
		if p.Problem != "" {
			r.notRead("configuration of kube-proxy in %s: %s", p.Object, p.Problem)
		}
		for _, pods := range p.ClusterCIDRs {
			r.add(ranges.Pods, pods.String(), p.Object, field)
		}
	}
}

func (r *reader) takePod(p *corev1.Pod) {
	object := references.Name("Pod", p)
	if p.Namespace == metav1.NamespaceSystem {
		for _, m := range nodeipam.Managers([]corev1.Pod{*p}) {
			r.addAll(ranges.Pods, m.ClusterCIDR, object, "--cluster-cidr")
		}
		r.takeProxies(inventory.ProxiesOf(object, &p.Spec), "--cluster-cidr")
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	if by := tailscale(p); by != "" && !slices.Contains(r.out.Tailscale, by) {
		r.out.Tailscale = append(r.out.Tailscale, by)
	}
	if p.Spec.HostNetwork {
		return // it has its node's address
	}
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			r.pods = append(r.pods, held{netip.PrefixFrom(a, a.BitLen()), object})
		}
	}
}

// tailscale is the workload of Tailscale, by its operator's labels or its images (cmd/k8s-operator
// and docs/k8s in github.com/tailscale/tailscale).
func tailscale(p *corev1.Pod) string {
	is := p.Labels["tailscale.com/managed"] == "true" || p.Labels["tailscale.com/parent-resource"] != ""
	for i := range p.Spec.Containers {
		is = is || strings.Contains("/"+p.Spec.Containers[i].Image, "/tailscale/")
	}
	if !is {
		return ""
	}
	if owner := metav1.GetControllerOfNoCopy(p); owner != nil {
		return owner.Kind + " " + p.Namespace + "/" + owner.Name
	}
	return references.Name("Pod", p)
}

func (r *reader) finish() *ClusterRanges {
	add := func(one ranges.Range) {
		one.Cluster = r.out.Name
		r.out.Ranges = append(r.out.Ranges, one)
	}
	for _, s := range r.said {
		add(ranges.Range{Use: s.use, Prefix: s.prefix, Source: s.field + " of " + lists.FirstN(s.objects, named)})
	}
	for _, p := range setOf(r.parts).Prefixes() {
		add(ranges.Range{Use: ranges.Pods, Prefix: p, Source: "spec.podCIDRs of " + lists.FirstN(objectsIn(r.parts, p), named), PerNode: true})
	}
	for _, one := range machines(r.nodes) {
		one.Use, one.Source = ranges.Nodes, "status.addresses of "+one.Source
		add(one)
	}
	for _, one := range machines(r.outside()) {
		one.Use, one.Source = ranges.Pods, "status.podIPs of "+one.Source+", in no range that was read"
		add(one)
	}
	ranges.Sort(r.out.Ranges)
	slices.Sort(r.out.Tailscale)
	return r.out
}

func (r *reader) outside() []held {
	var known netipx.IPSetBuilder
	for _, one := range r.out.Ranges {
		if one.Use == ranges.Pods {
			known.AddPrefix(one.Prefix)
		}
	}
	set, err := known.IPSet()
	if err != nil { // only of invalid ranges, which none is
		return r.pods
	}
	return slices.DeleteFunc(slices.Clone(r.pods), func(h held) bool { return set.Contains(h.prefix.Addr()) })
}

func setOf(all []held) *netipx.IPSet {
	var b netipx.IPSetBuilder
	for _, h := range all {
		b.AddPrefix(h.prefix)
	}
	set, err := b.IPSet()
	if err != nil { // only of invalid ranges, which none is
		return &netipx.IPSet{}
	}
	return set
}

// machines puts addresses into the narrowest ranges, by their surroundings. Source is their owner.
func machines(all []held) []ranges.Range {
	var out []ranges.Range
	places := map[netip.Prefix][]netip.Prefix{}
	for _, h := range all {
		at := ranges.Surroundings(h.prefix.Addr())
		if !slices.Contains(places[at], h.prefix) {
			places[at] = append(places[at], h.prefix)
		}
	}
	for _, hosts := range places {
		slices.SortFunc(hosts, netip.Prefix.Compare)
		one := ranges.Range{Prefix: nodeipam.Cover(hosts)}
		for _, h := range hosts {
			one.Addresses = append(one.Addresses, h.Addr())
		}
		one.Source = lists.FirstN(objectsIn(all, one.Prefix), named)
		out = append(out, one)
	}
	return out
}

func objectsIn(all []held, p netip.Prefix) []string {
	var out []string
	for _, h := range all {
		if p.Contains(h.prefix.Addr()) && (len(out) == 0 || out[len(out)-1] != h.object) {
			out = append(out, h.object)
		}
	}
	return out
}

const named = 3
