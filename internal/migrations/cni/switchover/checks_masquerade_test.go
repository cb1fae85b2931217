package switchover

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/inventory"
)

func outcome(all []findings.Result) string {
	var out []string
	for _, r := range all {
		out = append(out, string(r.Outcome))
	}
	return strings.Join(out, " ")
}

// TestUnseenProxy: what was not seen is unknown, whatever else is.
func TestUnseenProxy(t *testing.T) {
	ranges := func(texts ...string) (out []netip.Prefix) {
		for _, text := range texts {
			out = append(out, netip.MustParsePrefix(text))
		}
		return out
	}
	hidden := inventory.Proxy{Object: "DaemonSet", Hidden: true}
	for _, tt := range []struct {
		name    string
		proxies []inventory.Proxy
		to      v1alpha1.CNIName
		want    string
		vouched string
	}{
		{"nothing", nil, v1alpha1.Calico, "unknown", ""},
		{"a file", []inventory.Proxy{hidden}, v1alpha1.Calico, "unknown", ""},
		{"a file that is shown", []inventory.Proxy{hidden, {ClusterCIDRs: ranges("10.244.0.0/15")}}, v1alpha1.Calico, "", ""},
		{"unreadable", []inventory.Proxy{{Problem: "x"}}, v1alpha1.Calico, "unknown", ""},
		{"half of it", []inventory.Proxy{{ClusterCIDRs: ranges("10.244.0.0/16")}}, v1alpha1.Calico, "fail", "fail"},
		{"no range", []inventory.Proxy{{}}, v1alpha1.Calico, "", ""},
		{"of the node", []inventory.Proxy{{DetectLocalMode: "NodeCIDR"}}, v1alpha1.Calico, "fail", "fail"},
		{"of the node, for flannel", []inventory.Proxy{{DetectLocalMode: "NodeCIDR"}}, v1alpha1.Flannel, "", ""},
		{"interface", []inventory.Proxy{{DetectLocalMode: "InterfaceNamePrefix", LocalInterface: "cali"}}, v1alpha1.Calico, "", ""},
		{"interfaces of Cilium", []inventory.Proxy{{DetectLocalMode: "InterfaceNamePrefix", LocalInterface: "lxc"}}, v1alpha1.Cilium, "", ""},
		{"of another network", []inventory.Proxy{{DetectLocalMode: "BridgeInterface", LocalInterface: "cni0"}}, v1alpha1.Calico, "unknown", ""},
		{"bridge", []inventory.Proxy{{DetectLocalMode: "BridgeInterface", LocalInterface: "cni0"}}, v1alpha1.Flannel, "", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &Inventory{Spec: Spec{To: tt.to, PodCIDR: netip.MustParsePrefix("10.245.0.0/16")}, Proxies: tt.proxies}
			if got := outcome(checkProxy(Input{Inventory: s})); got != tt.want {
				t.Errorf("it is %q, want %q", got, tt.want)
			}
			s.Spec.Vouch.KubeProxy = true
			if got := outcome(checkProxy(Input{Inventory: s})); got != tt.vouched {
				t.Errorf("vouched for it is %q, want %q", got, tt.vouched)
			}
		})
	}
}
