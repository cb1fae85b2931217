package nodecleanup

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// aNode is the root of a node with files in it; one that ends in / is a directory.
func aNode(t *testing.T, files map[string]string) Host {
	t.Helper()
	root := t.TempDir()
	for name, body := range files {
		at := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(at), 0o750))
		must(t, os.WriteFile(at, []byte(body), 0o600))
	}
	return Host{Root: root}
}

// TestNamesOfNetworks: one that is none has nothing removed, be it by its name or beside it.
func TestNamesOfNetworks(t *testing.T) {
	calico, _ := Find("calico")
	for name, good := range map[string]bool{
		"k8s-pod-network": true, "a_b.c-1": true, "/": false, "..": false, ".": false, "": false, "../x": false, "a/b": false, "a b": false, "-": false,
	} {
		h := aNode(t, map[string]string{
			"etc/cni/net.d/10-c.conflist":         `{"name": "` + name + `", "plugins": [{"type": "calico"}]}`,
			"var/lib/cni/networks/other/10.0.0.1": "leased", "var/lib/cni/x/y": "else",
		})
		nets, err := h.names(calico)
		var bad *NameError
		if good != (err == nil) || good != slices.Contains(nets, name) || !good && !errors.As(err, &bad) {
			t.Errorf("%q: %v, %v", name, nets, err)
		}
		if _, err := h.parts(calico); good != (err == nil) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestLinksOutOfTheNode: what a link leads to outside of the node's root is neither found nor
// removed.
func TestLinksOutOfTheNode(t *testing.T) {
	calico, _ := Find("calico")
	outside := t.TempDir()
	must(t, os.WriteFile(filepath.Join(outside, "kept"), nil, 0o600))
	h := aNode(t, map[string]string{"var/lib/cni/networks/k8s-pod-network/10.0.0.1": "leased", "run/calico/x": "x"})
	must(t, os.Symlink(outside, filepath.Join(h.Root, "var/lib/calico")))
	must(t, os.Symlink("../run", filepath.Join(h.Root, "var/run")))
	p := dirPart{h, calico, []string{"k8s-pod-network"}}
	found, err := p.find()
	want := []string{"directory /run/calico", "directory /var/lib/cni/networks/k8s-pod-network"}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, want %q; %v", found, want, err)
	}
	must(t, p.remove())
	if found, err := p.find(); err != nil || len(found) > 0 {
		t.Errorf("left are %q, %v", found, err)
	}
	if _, err := os.Stat(filepath.Join(outside, "kept")); err != nil {
		t.Error(err)
	}
}
