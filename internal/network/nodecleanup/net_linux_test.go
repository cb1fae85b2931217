package nodecleanup

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestFiles has the configuration of a network beside that of the next one.
func TestFiles(t *testing.T) {
	root := t.TempDir()
	for name, body := range map[string]string{
		"etc/cni/net.d/10-flannel.conflist": `{"name":"cbr9","plugins":[{"type":"flannel","delegate":{"bridge":"br9"}},{"type":"portmap"}]}`,
		"etc/cni/net.d/20-calico.conflist":  `{"name":"k8s-pod-network","plugins":[{"type":"calico"}]}`,
		"etc/cni/net.d/99-loopback.conf":    `{"name":"lo","type":"loopback"}`,
		"etc/cni/net.d/readme.conf":         `flannel`,
		"etc/cni/net.d/calico-kubeconfig":   `x`,
		"run/flannel/subnet.env":            `x`,
		"var/lib/cni/flannel/abc":           `x`,
		"var/lib/cni/networks/cbr9/1":       `x`,
		"var/lib/cni/networks/cni0/lock":    `x`,
		"var/lib/cni/networks/other/1":      `x`,
		"var/lib/cni/results/cbr9-abc-eth0": `x`,
		"var/lib/calico/nodename":           `x`,
		"elsewhere/keep":                    `x`,
	} {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(body), 0o600))
	}
	must(t, os.MkdirAll(filepath.Join(root, "var/run"), 0o755))
	must(t, os.MkdirAll(filepath.Join(root, "var/lib/cni/networks/flannel"), 0o755)) // an empty one is nothing
	n, _ := Find("flannel")
	h := Host{Root: root}
	nets, err := h.names(n)
	must(t, err)
	if want := []string{"cbr0", "cbr9", "cni0", "flannel"}; !slices.Equal(nets, want) {
		t.Errorf("names %v, want %v", nets, want)
	}
	bridges, err := h.bridges(n)
	must(t, err)
	if want := []string{"br9", "cni0"}; !slices.Equal(slices.Sorted(slices.Values(bridges)), want) {
		t.Errorf("bridges %v, want %v", bridges, want)
	}
	parts := []part{confPart{h, n}, dirPart{h, n, nets}}
	r, err := found(n, parts)
	must(t, err)
	want := []string{
		"file /etc/cni/net.d/10-flannel.conflist", "directory /run/flannel", "directory /var/lib/cni/flannel",
		"directory /var/lib/cni/networks/cbr9", "directory /var/lib/cni/networks/cni0", "file /var/lib/cni/results/cbr9-abc-eth0",
	}
	if !slices.Equal(r.Found, want) {
		t.Errorf("found %v, want %v", r.Found, want)
	}
	for _, p := range parts {
		must(t, p.remove())
	}
	if r, err := found(n, parts); err != nil || !r.Empty() {
		t.Errorf("left: %v, %v", r, err)
	}
	for _, stays := range []string{
		"etc/cni/net.d/20-calico.conflist", "etc/cni/net.d/99-loopback.conf", "var/lib/calico/nodename", "var/lib/cni/networks/other/1", "elsewhere/keep",
	} {
		if _, err := os.Stat(filepath.Join(root, stays)); err != nil {
			t.Errorf("%s: %v", stays, err)
		}
	}
}

// TestWeaveFiles: configuration, state and results of Weave, as its manifest and its script leave
// them.
func TestWeaveFiles(t *testing.T) {
	root := t.TempDir()
	for name, body := range map[string]string{
		"etc/cni/net.d/10-weave.conflist": `{"cniVersion":"0.3.0","name":"weave","plugins":[{"name":"weave","type":"weave-net","hairpinMode":true},
			{"type":"portmap","capabilities":{"portMappings":true},"snat":true}]}`,
		"etc/cni/net.d/10-calico.conflist":   `{"name":"k8s-pod-network","plugins":[{"type":"calico"}]}`,
		"var/lib/weave/weave-netdata.db":     `x`,
		"run/weave/weave.sock":               `x`,
		"var/lib/cni/results/weave-abc-eth0": `x`,
		"var/lib/weaver/keep":                `x`,
		"opt/cni/bin/weave-net":              `x`,
	} {
		must(t, os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755))
		must(t, os.WriteFile(filepath.Join(root, name), []byte(body), 0o600))
	}
	n, _ := Find("weave")
	h := Host{Root: root}
	nets, err := h.names(n)
	must(t, err)
	bridges, err := h.bridges(n)
	must(t, err)
	if !slices.Equal(nets, []string{"weave"}) || !slices.Equal(bridges, []string{"weave"}) {
		t.Errorf("names %v, bridges %v", nets, bridges)
	}
	parts := []part{confPart{h, n}, dirPart{h, n, nets}}
	r, err := found(n, parts)
	must(t, err)
	want := []string{
		"file /etc/cni/net.d/10-weave.conflist",
		"directory /var/lib/weave",
		"directory /run/weave",
		"file /var/lib/cni/results/weave-abc-eth0",
	}
	if !slices.Equal(r.Found, want) {
		t.Errorf("found %v, want %v", r.Found, want)
	}
	for _, p := range parts {
		must(t, p.remove())
	}
	if r, err := found(n, parts); err != nil || !r.Empty() {
		t.Errorf("left: %v, %v", r, err)
	}
	for _, stays := range []string{"etc/cni/net.d/10-calico.conflist", "var/lib/weaver/keep", "opt/cni/bin/weave-net"} {
		if _, err := os.Stat(filepath.Join(root, stays)); err != nil {
			t.Errorf("%s: %v", stays, err)
		}
	}
}
