package nodecleanup

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const (
	ptpList    = `{"name": "lab", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.244.1.0/24"}]]}}, {"type": "portmap"}]}`
	bridgeConf = `{"name": "kubenet", "type": "bridge", "bridge": "cbr0", "ipMasq": true, "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}`
	podmanList = `{"name": "podman", "plugins": [{"type": "bridge", "bridge": "cni-podman0",
		"ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/16"}]]}}]}`
)

func ofNode(h Host) Host {
	h.Pods = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	return h
}

// TestHostLocalFiles: only those that give out addresses of the node's own range are host-local's.
func TestHostLocalFiles(t *testing.T) {
	for name, tt := range map[string]struct {
		body string
		want bool
	}{
		"ptp":                   {ptpList, true},
		"bridge":                {bridgeConf, true},
		"podman":                {podmanList, false},
		"a part of the range":   {strings.ReplaceAll(ptpList, "10.244.1.0/24", "10.244.1.128/25"), true},
		"more than the range":   {strings.ReplaceAll(ptpList, "10.244.1.0/24", "10.244.0.0/16"), false},
		"also another range":    {strings.ReplaceAll(ptpList, `[{"subnet": "10.244.1.0/24"}]`, `[{"subnet": "10.244.1.0/24"}], [{"subnet": "10.9.0.0/24"}]`), false},
		"no range":              {`{"name": "x", "type": "bridge", "ipam": {"type": "host-local"}}`, false},
		"dhcp":                  {`{"name": "x", "type": "bridge", "ipam": {"type": "dhcp", "subnet": "10.244.1.0/24"}}`, false},
		"flannel's":             {`{"name": "cbr0", "plugins": [{"type": "flannel", "delegate": {"isDefaultGateway": true}}]}`, false},
		"Calico's with its own": {`{"name": "k", "plugins": [{"type": "calico", "ipam": {"type": "host-local", "subnet": "10.244.1.0/24"}}]}`, false},
		"an IPAM of words":      {`{"name": "x", "type": "bridge", "ipam": "host-local"}`, false},
	} {
		h := ofNode(aNode(t, map[string]string{"etc/cni/net.d/10-x.conflist": tt.body}))
		n, _ := Find(HostLocal)
		found, err := (confPart{h, h.narrow(n)}).find()
		if err != nil || (len(found) == 1) != tt.want {
			t.Errorf("%s: %v, %v", name, found, err)
		}
		other := Host{Root: h.Root} // of which no range is known
		if found, err := (confPart{other, other.narrow(n)}).find(); err != nil || len(found) != 0 {
			t.Errorf("%s, of no range: %v, %v", name, found, err)
		}
	}
}

// TestHostLocalParts: what is named by the files is known until they go, which is last, also where
// Cilium has put them aside; and files, bridges and addresses of podman stay.
func TestHostLocalParts(t *testing.T) {
	h := ofNode(aNode(t, map[string]string{
		"etc/cni/net.d/10-kubenet.conf.cilium_bak":    bridgeConf,
		"etc/cni/net.d/87-podman.conflist":            podmanList,
		"var/lib/cni/networks/kubenet/10.244.1.2":     "leased",
		"var/lib/cni/networks/podman/10.88.0.2":       "leased",
		"var/lib/cni/results/kubenet-0123456789-eth0": "{}",
		"var/lib/cni/results/podman-0123456789-eth0":  "{}",
	}))
	n, _ := Find(HostLocal)
	n = h.narrow(n)
	bridges, err := h.bridges(n)
	if err != nil || !slices.Equal(bridges, []string{"cbr0"}) {
		t.Errorf("bridges are %v, %v", bridges, err)
	}
	parts, err := h.parts(n)
	must(t, err)
	if _, last := parts[len(parts)-1].(confPart); !last {
		t.Errorf("the last part is %T", parts[len(parts)-1])
	}
	for _, p := range parts {
		switch p.(type) {
		case dirPart, confPart:
			must(t, p.remove())
		}
	}
	var left []string
	must(t, filepath.WalkDir(h.Root, func(at string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			left = append(left, filepath.Base(at))
		}
		return err
	}))
	if want := []string{"87-podman.conflist", "10.88.0.2", "podman-0123456789-eth0"}; !slices.Equal(left, want) {
		t.Errorf("%v are left, want %v", left, want)
	}
}

// TestHostLocalLegacy: rules of pods by the name of the network, with their chains, and none of
// portmap's own or of another network.
func TestHostLocalLegacy(t *testing.T) {
	n, _ := Find(HostLocal)
	n = n.ofPods([]string{"kubenet"})
	const save = `*nat
:POSTROUTING ACCEPT [0:0]
:CNI-0123456789abcdef01234567 - [0:0]
:CNI-fedcba9876543210fedcba98 - [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:CNI-DN-0123456789abcdef01234 - [0:0]
-A POSTROUTING -s 10.244.1.2/32 -m comment --comment "name: \"kubenet\" id: \"0a\"" -j CNI-0123456789abcdef01234567
-A POSTROUTING -s 10.88.0.2/32 -m comment --comment "name: \"podman\" id: \"0b\"" -j CNI-fedcba9876543210fedcba98
-A CNI-0123456789abcdef01234567 -d 10.244.1.0/24 -m comment --comment "name: \"kubenet\" id: \"0a\"" -j ACCEPT
-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment "dnat name: \"kubenet\" id: \"0a\"" -m multiport --dports 80 -j CNI-DN-0123456789abcdef01234
COMMIT
`
	_, restore := legacyFinds(n, save)
	for text, want := range map[string]bool{
		"-X CNI-0123456789abcdef01234567": true, "-X CNI-DN-0123456789abcdef01234": true, "fedcba": false, "-X CNI-HOSTPORT": false, "podman": false,
		"-D CNI-HOSTPORT-DNAT": true, "-D POSTROUTING -s 10.244.1.2/32": true,
	} {
		if strings.Contains(restore, text) != want {
			t.Errorf("%q in it is not %v:\n%s", text, want, restore)
		}
	}
}
