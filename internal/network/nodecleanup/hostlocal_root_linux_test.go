//go:build root

package nodecleanup

import (
	"os"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

// podRules are those that ipMasq and portmap have left for a pod of each of two networks, beside
// what portmap has for all.
const podRules = `*nat
:CNI-0123456789abcdef01234567 - [0:0]
:CNI-fedcba9876543210fedcba98 - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -s 10.244.1.2/32 -m comment --comment "name: \"kubenet\" id: \"0a\"" -j CNI-0123456789abcdef01234567
-A POSTROUTING -s 10.88.0.2/32 -m comment --comment "name: \"podman\" id: \"0b\"" -j CNI-fedcba9876543210fedcba98
-A CNI-0123456789abcdef01234567 -d 10.244.1.0/24 -m comment --comment "name: \"kubenet\" id: \"0a\"" -j ACCEPT
-A CNI-fedcba9876543210fedcba98 -d 10.88.0.0/16 -m comment --comment "name: \"podman\" id: \"0b\"" -j ACCEPT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"kubenet\" id: \"0a\"" -m multiport --dports 80 -j CNI-DN-0123456789abcdef01234
-A CNI-DN-0123456789abcdef01234 -p tcp -m tcp --dport 80 -j DNAT --to-destination 10.244.1.2:8080
COMMIT
`

// TestCleanHostLocal removes host-local from a node that has podman too, whose network is of the
// same plugins, and a route to another node.
func TestCleanHostLocal(t *testing.T) {
	ownnet.Enter(t)
	h := ofNode(aNode(t, map[string]string{
		netd + "10-kubenet.conf":                     bridgeConf,
		netd + "87-podman.conflist":                  podmanList,
		netd + "00-replumb.conflist":                 calicoList,
		"var/lib/cni/networks/kubenet/10.244.1.2":    "leased",
		"var/lib/cni/networks/podman/10.88.0.2":      "leased",
		"var/lib/cni/results/kubenet-012345-eth0":    "{}",
		"var/lib/cni/results/podman-0123456789-eth0": "{}",
	}))
	before := linkNames(t)
	for bridge, pod := range map[string]string{"cbr0": "vethpod", "cni-podman0": "vethbox"} {
		a := attrs(pod)
		a.MasterIndex = addLink(t, &netlink.Bridge{LinkAttrs: attrs(bridge)}).Attrs().Index
		addLink(t, &netlink.Veth{LinkAttrs: a, PeerName: pod + "p"})
	}
	must(t, netlink.LinkSetUp(addLink(t, &netlink.Veth{LinkAttrs: attrs("eth0"), PeerName: "eth0p"})))
	run(t, "", "ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
	run(t, "", "ip", "route", "add", "10.244.2.0/24", "via", "192.0.2.2")
	run(t, podRules, "iptables-nft-restore")

	n, _ := Find(HostLocal)
	r, err := h.Clean(n)
	must(t, err)
	for _, want := range []string{"interface cbr0", "interface vethpod", "directory /var/lib/cni/networks/kubenet", "file /etc/cni/net.d/10-kubenet.conf"} {
		if !slices.Contains(r.Found, want) {
			t.Errorf("%s is not in %v", want, r.Found)
		}
	}
	want := append(slices.Clone(before), "cni-podman0", "eth0", "eth0p", "vethbox", "vethboxp")
	slices.Sort(want)
	if got := linkNames(t); !slices.Equal(got, want) {
		t.Errorf("interfaces are %v, want %v", got, want)
	}
	save := run(t, "", "iptables-nft-save", "-t", "nat")
	for text, stays := range map[string]bool{
		"kubenet": false, ":CNI-0123456789abcdef01234567": false, ":CNI-DN-": false, "podman": true, ":CNI-fedcba9876543210fedcba98": true,
		":CNI-HOSTPORT-DNAT": true,
	} {
		if strings.Contains(save, text) != stays {
			t.Errorf("%q in the rules is not %v:\n%s", text, stays, save)
		}
	}
	if routes := run(t, "", "ip", "route"); !strings.Contains(routes, "10.244.2.0/24") {
		t.Errorf("the route to another node is gone:\n%s", routes)
	}
	for _, stays := range []string{netd + "87-podman.conflist", netd + "00-replumb.conflist", "var/lib/cni/networks/podman/10.88.0.2"} {
		if _, err := os.Stat(path.Join(h.Root, stays)); err != nil {
			t.Errorf("%s: %v", stays, err)
		}
	}
	if r, err := h.Residue(n); err != nil || !r.Empty() {
		t.Errorf("left: %v, %v", r, err)
	}
}

// TestOrigin has a node with a network from files, as it should be and otherwise.
func TestOrigin(t *testing.T) {
	const config = "etc/containerd/config.toml"
	for name, tt := range map[string]struct {
		files  map[string]string
		strict bool
		want   []string
	}{
		"as it should be":    {files: map[string]string{netd + "10-lab.conflist": ptpList}},
		"switched":           {files: map[string]string{netd + "10-lab.conflist": ptpList, netd + Preferred: calicoList}},
		"podman comes later": {files: map[string]string{netd + "10-lab.conflist": ptpList, netd + "87-podman.conflist": podmanList}},
		"nothing":            {want: []string{"/etc/cni/net.d holds no configuration"}},
		"podman alone": {
			files: map[string]string{netd + "87-podman.conflist": podmanList}, want: []string{"/etc/cni/net.d/87-podman.conflist comes first"},
		},
		"Calico comes first": {
			files: map[string]string{netd + "10-calico.conflist": calicoList, netd + "10-lab.conflist": ptpList},
			want:  []string{"/etc/cni/net.d/10-calico.conflist comes first, and does not have host-local give out addresses of [10.244.1.0/24]"},
		},
		"containerd writes it": {
			files: map[string]string{
				netd + "10-lab.conflist": ptpList,
				config:                   "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nconf_template = \"/etc/cni/template\"\n",
			},
			want: []string{"/etc/containerd/config.toml sets conf_template"},
		},
		"strict": {
			files: map[string]string{netd + "10-lab.conflist": ptpList}, strict: true, want: []string{"reverse path filtering is strict on eth0"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ownnet.Enter(t)
			files := map[string]string{"etc/x": ""}
			for file, body := range tt.files {
				files[file] = body
			}
			h := ofNode(aNode(t, files))
			must(t, netlink.LinkSetUp(addLink(t, &netlink.Veth{LinkAttrs: attrs("eth0"), PeerName: "eth0p"})))
			must(t, netlink.LinkSetUp(addLink(t, &netlink.Veth{LinkAttrs: attrs("inner"), PeerName: "innerp"})))
			run(t, "", "ip", "address", "add", "192.0.2.1/24", "dev", "eth0")
			run(t, "", "ip", "route", "add", "default", "via", "192.0.2.9")
			own := "0"
			if tt.strict {
				own = "1"
			}
			for of, value := range map[string]string{"all": "0", "eth0": own, "inner": "1"} {
				must(t, os.WriteFile(path.Join(sysctls, of, "rp_filter"), []byte(value), 0))
			}
			n, _ := Find(HostLocal)
			r, err := h.Origin(n)
			must(t, err)
			requireProblems(t, r.Problems, tt.want)
		})
	}
}
