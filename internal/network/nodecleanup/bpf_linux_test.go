package nodecleanup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestPins: what Cilium's programs are kept by goes, the links first, and what others have pinned
// stays.
func TestPins(t *testing.T) {
	cilium, _ := Find("cilium")
	others := []string{"sys/fs/bpf/tc/globals/cali_v4_routes", "sys/fs/bpf/other/x", "sys/fs/bpf/cilium-not"}
	files := map[string]string{
		"sys/fs/bpf/cilium/devices/eth0/links/cil_from_netdev": "",
		"sys/fs/bpf/cilium/x":                     "",
		"sys/fs/bpf/tc/globals/cilium_ipcache_v2": "",
	}
	for _, name := range others {
		files[name] = ""
	}
	p := pinPart{aNode(t, files), cilium}
	found, err := p.find()
	want := []string{
		"pinned /sys/fs/bpf/cilium/devices", "pinned /sys/fs/bpf/cilium", "pinned /sys/fs/bpf/tc/globals/cilium_ipcache_v2",
	}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, want %q; %v", found, want, err)
	}
	must(t, p.remove())
	if found, err := p.find(); err != nil || len(found) > 0 {
		t.Errorf("left are %q, %v", found, err)
	}
	for _, name := range others {
		if _, err := os.Stat(filepath.Join(p.Root, name)); err != nil {
			t.Error(err)
		}
	}
	flannel, _ := Find("flannel")
	if found, err := (pinPart{p.Host, flannel}).find(); err != nil || len(found) > 0 {
		t.Errorf("flannel has %q, %v", found, err)
	}
}

// TestPutAside: a configuration that Cilium has put aside is that of its network still.
func TestPutAside(t *testing.T) {
	flannel, _ := Find("flannel")
	h := aNode(t, map[string]string{
		"etc/cni/net.d/05-cilium.conflist":             `{"name": "cilium", "plugins": [{"type": "cilium-cni"}]}`,
		"etc/cni/net.d/10-flannel.conflist.cilium_bak": `{"name": "cbr0", "plugins": [{"type": "flannel"}]}`,
	})
	p := confPart{h, flannel}
	found, err := p.find()
	if want := []string{"file /etc/cni/net.d/10-flannel.conflist.cilium_bak"}; err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, want %q; %v", found, want, err)
	}
	must(t, p.remove())
	if _, err := os.Stat(filepath.Join(h.Root, "etc/cni/net.d/05-cilium.conflist")); err != nil {
		t.Error(err)
	}
}

// TestLinksOfCilium are told from those of others by their whole names.
func TestLinksOfCilium(t *testing.T) {
	cilium, _ := Find("cilium")
	for name, its := range map[string]bool{
		"cilium_host": true, "cilium_vxlan": true, "lxc_health": true, "lxc8021487f9a3f": true,
		"lxcbr0": false, "lxc1": false, "eth0": false, "cali0123456789a": false, "lxc8021487f9a3": false, "lxc8021487f9a3g": false,
	} {
		if matches(cilium.Links, name) != its {
			t.Errorf("%s is its own: %v", name, !its)
		}
	}
}

// TestAdoptCilium: nothing of replumb is left once a node goes by Cilium's own file, nor what
// Cilium's agent has put aside of it.
func TestAdoptCilium(t *testing.T) {
	cilium, _ := Find("cilium")
	const list = `{"name": "cilium", "plugins": [{"type": "cilium-cni"}]}`
	h := aNode(t, map[string]string{
		netd + "05-cilium.conflist": list, netd + "05-cilium.conflist.replumb": list, netd + Preferred + putAside: list,
	})
	must(t, h.Adopt(cilium))
	entries, err := os.ReadDir(filepath.Join(h.Root, netd))
	if err != nil || len(entries) != 1 || entries[0].Name() != "05-cilium.conflist" {
		t.Errorf("there is %v, %v", entries, err)
	}
}
