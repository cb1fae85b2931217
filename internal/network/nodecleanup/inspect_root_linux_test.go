//go:build root

package nodecleanup

import (
	"os"
	"path"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

const sizedList = `{"name": "k8s-pod-network", "plugins": [{"type": "calico", "mtu": 1450}]}`

// TestInspect has a node with the tunnels of both networks, as they should be and otherwise, and
// changes nothing of it.
func TestInspect(t *testing.T) {
	calico, _ := Find("calico")
	for name, tt := range map[string]struct {
		sysctls map[string]string
		mtu     int
		want    []string
	}{
		"as it should be":      {mtu: 1450},
		"loose":                {mtu: 1450, sysctls: map[string]string{"all": "2", "flannel.1": "1", "vxlan.calico": "1"}},
		"the larger one loose": {mtu: 1450, sysctls: map[string]string{"all": "1", "flannel.1": "2", "vxlan.calico": "2"}},
		"strict everywhere": {mtu: 1450, sysctls: map[string]string{"all": "1"}, want: []string{
			"strict on flannel.1: packets from pods of the other network would be dropped; write 2 to /proc/sys/net/ipv4/conf/flannel.1/rp_filter",
			"strict on vxlan.calico",
		}},
		"strict on one":           {mtu: 1450, sysctls: map[string]string{"vxlan.calico": "1"}, want: []string{"strict on vxlan.calico"}},
		"strict where it is fine": {mtu: 1450, sysctls: map[string]string{"cni0": "1", "tunl9": "1", "lo": "1"}},
		"too narrow": {mtu: 1400, want: []string{
			"the configuration of calico that lies ready gives pods an MTU of 1450, and vxlan.calico has only 1400",
		}},
		"wider": {mtu: 1500},
	} {
		t.Run(name, func(t *testing.T) {
			ownnet.Enter(t)
			h := aNode(t, map[string]string{netd + "10-calico.conflist.replumb": sizedList})
			up(t, &netlink.Vxlan{LinkAttrs: attrs("flannel.1"), VxlanId: 1, Port: 8472}, 1000)
			up(t, &netlink.Vxlan{LinkAttrs: attrs("vxlan.calico"), VxlanId: 4096, Port: 4789}, tt.mtu)
			up(t, &netlink.Bridge{LinkAttrs: attrs("cni0")}, 1000)
			up(t, &netlink.Bridge{LinkAttrs: attrs("tunl9")}, 1000)
			for _, of := range []string{"all", "default", "flannel.1", "vxlan.calico", "cni0", "tunl9", "lo"} {
				value := tt.sysctls[of]
				if value == "" {
					value = "0"
				}
				must(t, os.WriteFile(path.Join(sysctls, of, "rp_filter"), []byte(value), 0))
			}
			for range 2 { // looking changes nothing
				r, err := h.Inspect(calico)
				must(t, err)
				requireProblems(t, r.Problems, tt.want)
				if r.Empty() != (len(tt.want) == 0) {
					t.Errorf("that %s is nothing is %v", r, r.Empty())
				}
			}
		})
	}
}

// TestInspectDown: a tunnel that is down carries nothing, such as the one that the kernel's module
// makes.
func TestInspectDown(t *testing.T) {
	ownnet.Enter(t)
	calico, _ := Find("calico")
	h := aNode(t, map[string]string{netd + "10-calico.conflist.replumb": calicoList})
	must(t, netlink.LinkAdd(&netlink.Vxlan{LinkAttrs: attrs("vxlan.calico"), VxlanId: 4096, Port: 4789}))
	must(t, os.WriteFile(path.Join(sysctls, "vxlan.calico", "rp_filter"), []byte("1"), 0))
	r, err := h.Inspect(calico)
	must(t, err)
	requireProblems(t, r.Problems, nil)
}

func up(t *testing.T, l netlink.Link, mtu int) {
	t.Helper()
	l = addLink(t, l)
	must(t, netlink.LinkSetMTU(l, mtu))
	must(t, netlink.LinkSetUp(l))
}
