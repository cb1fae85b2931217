package nodecleanup

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	calicoList  = `{"name": "k8s-pod-network", "plugins": [{"type": "calico", "nodename": "a"}, {"type": "portmap"}]}`
	flannelList = `{"name": "cbr0", "plugins": [{"type": "flannel"}, {"type": "portmap"}]}`
	netd        = "etc/cni/net.d/"
)

// TestPrefer: there and back, twice each, with what a run leaves that was killed in the middle.
func TestPrefer(t *testing.T) {
	calico, _ := Find("calico")
	flannel, _ := Find("flannel")
	own := map[string]string{netd + "10-flannel.conflist": flannelList, netd + "10-calico.conflist.replumb": calicoList}
	h := aNode(t, own)
	must(t, os.WriteFile(filepath.Join(h.Root, netd, preferring), []byte(`{"name": "k8s-`), 0o600))
	requirePrefers(t, h, calico, false)
	for range 2 {
		must(t, h.Prefer(calico))
		requirePrefers(t, h, calico, true)
		requirePrefers(t, h, flannel, false)
	}
	body, err := os.ReadFile(filepath.Join(h.Root, netd, Preferred))
	if err != nil || string(body) != calicoList {
		t.Errorf("it is %s, %v", body, err)
	}
	for range 2 {
		must(t, h.Unprefer())
		requirePrefers(t, h, calico, false)
	}
	entries, err := os.ReadDir(filepath.Join(h.Root, netd))
	if err != nil || len(entries) != len(own) {
		t.Errorf("there is %v, %v", entries, err)
	}
}

func requirePrefers(t *testing.T, h Host, n NetworkTraces, want bool) {
	t.Helper()
	if got, err := h.Prefers(n); err != nil || got != want {
		t.Errorf("that it prefers %s is %v, %v; want %v", n.Name, got, err, want)
	}
}

// TestPreferRefuses what would leave the node with half of a network, or with the old one.
func TestPreferRefuses(t *testing.T) {
	calico, _ := Find("calico")
	for name, files := range map[string]map[string]string{
		"nothing":            {netd + "10-flannel.conflist": flannelList},
		"half a file":        {netd + "10-calico.conflist.replumb": calicoList[:40]},
		"no list":            {netd + "10-calico.conf.replumb": `{"name": "k8s-pod-network", "type": "calico"}`},
		"another network":    {netd + "10-flannel.conflist.replumb": flannelList},
		"only half by name":  {netd + preferring: calicoList},
		"another goes first": {netd + "00-multus.conf": flannelList, netd + "10-calico.conflist.replumb": calicoList},
		"broken, goes first": {netd + "00-broken.conf": "{", netd + "10-calico.conflist.replumb": calicoList},
	} {
		t.Run(name, func(t *testing.T) {
			h := aNode(t, files)
			err := h.Prefer(calico)
			if err == nil {
				t.Error("it was preferred")
			}
			if ahead := (*AheadError)(nil); errors.As(err, &ahead) != strings.HasSuffix(name, "goes first") {
				t.Errorf("it is %v", err)
			}
			if prefers, _ := h.Prefers(calico); prefers {
				t.Error("it says that the node prefers it")
			}
		})
	}
}

// TestOvertaken: what comes to go first later is an error, not the network that was chosen.
func TestOvertaken(t *testing.T) {
	calico, _ := Find("calico")
	h := aNode(t, map[string]string{netd + "10-calico.conflist.replumb": calicoList})
	must(t, h.Prefer(calico))
	requirePrefers(t, h, calico, true)
	must(t, os.WriteFile(filepath.Join(h.Root, netd, "00-multus.conf"), []byte(flannelList), 0o600))
	ahead := (*AheadError)(nil)
	if prefers, err := h.Prefers(calico); prefers || !errors.As(err, &ahead) || ahead.File != "00-multus.conf" {
		t.Errorf("it is %v, %v", prefers, err)
	}
}

// TestCleanTakesWhatLiesReady: a network that is removed leaves no configuration for later, and
// another's stays.
func TestCleanTakesWhatLiesReady(t *testing.T) {
	calico, _ := Find("calico")
	h := aNode(t, map[string]string{
		netd + "10-flannel.conflist.replumb": flannelList, netd + "10-calico.conflist.replumb": calicoList, netd + Preferred: calicoList,
	})
	part := confPart{h, calico}
	found, err := part.find()
	if err != nil || len(found) != 2 {
		t.Errorf("it finds %v, %v", found, err)
	}
	must(t, part.remove())
	entries, err := os.ReadDir(filepath.Join(h.Root, netd))
	if err != nil || len(entries) != 1 || entries[0].Name() != "10-flannel.conflist.replumb" {
		t.Errorf("there is %v, %v", entries, err)
	}
}
