package nodecleanup

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	containerdToml = "etc/containerd/config.toml"
	v2Max          = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\".cni]\nmax_conf_num = "
)

// TestRuntimes has configurations of runtimes, and words of the problem that each is; none, if it
// is as it should be.
func TestRuntimes(t *testing.T) {
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"nothing": {},
		"containerd's default": {files: map[string]string{
			containerdToml: v2Max + "1\nconf_dir = \"/etc/cni/net.d/\"\nbin_dir = \"/opt/cni/bin\"\n" +
				"[plugins.\"io.containerd.grpc.v1.cri\".containerd.runtimes.runc]\ncni_conf_dir = \"\"\ncni_max_conf_num = 0\n",
		}},
		"two networks": {
			files: map[string]string{containerdToml: v2Max + "2\n"},
			want:  []string{"/etc/containerd/config.toml sets max_conf_num to 2"},
		},
		"any number": {
			files: map[string]string{containerdToml: v2Max + "0\n"},
			want:  []string{"sets max_conf_num to 0"},
		},
		"version 3": {
			files: map[string]string{containerdToml: "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nmax_conf_num = 4\n"},
			want:  []string{"sets max_conf_num to 4"},
		},
		"version 1": {
			files: map[string]string{containerdToml: "[plugins.cri.cni]\nmax_conf_num = 4\n"},
			want:  []string{"sets max_conf_num to 4"},
		},
		"of another plugin": {files: map[string]string{containerdToml: "[plugins.'mine.v1.x']\ncni = 5\nmax_conf_num = 4\n"}},
		"K3s, RKE2": {
			files: map[string]string{
				"var/lib/rancher/k3s/agent/etc/containerd/config.toml": "[plugins.'io.containerd.grpc.v1.cri'.cni]\n" +
					"conf_dir = \"/var/lib/rancher/k3s/agent/etc/cni/net.d\"\n",
				"var/lib/rancher/rke2/agent/etc/containerd/config.toml": v2Max + "3\n",
			},
			want: []string{
				`/var/lib/rancher/k3s/agent/etc/containerd/config.toml sets conf_dir to "/var/lib/rancher/k3s/agent/etc/cni/net.d"`,
				"/var/lib/rancher/rke2/agent/etc/containerd/config.toml sets max_conf_num to 3",
			},
		},
		"imported": {
			files: map[string]string{
				containerdToml:                  "imports = [\"conf.d/*.toml\", \"/etc/other.toml\", \"/etc/containerd/config.toml\", \"/none\"]\n",
				"etc/containerd/conf.d/a.toml":  v2Max + "2\n",
				"etc/containerd/conf.d/b.other": v2Max + "3\n",
				"etc/other.toml":                "imports = [\"/etc/containerd/*.toml\"]\n" + v2Max + "4\n",
			},
			want: []string{"/etc/containerd/conf.d/a.toml sets max_conf_num to 2", "/etc/other.toml sets max_conf_num to 4"},
		},
		"a runtime with networks of its own": {
			files: map[string]string{
				containerdToml: "[plugins.'io.containerd.grpc.v1.cri'.containerd.runtimes.kata]\ncni_conf_dir = \"/etc/kata/net.d\"\n",
			},
			want: []string{`sets cni_conf_dir to "/etc/kata/net.d": pods of the runtime "kata"`},
		},
		"no TOML": {
			files: map[string]string{containerdToml: "[plugins\n", "etc/crio/crio.conf.d/10.conf": "{"},
			want:  []string{"is not known: /etc/containerd/config.toml: toml:", "is not known: /etc/crio/crio.conf.d/10.conf: toml:"},
		},
		"CRI-O's default": {files: map[string]string{
			"etc/crio/crio.conf":           "[crio]\n[crio.network]\nplugin_dirs = [\"/opt/cni/bin/\"]\nnetwork_dir = \"/etc/cni/net.d/\"\n",
			"etc/crio/crio.conf.d/10.conf": "[crio.runtime]\ndefault_runtime = \"crun\"\n",
		}},
		"CRI-O goes by a name": {
			files: map[string]string{"etc/crio/crio.conf": "[crio.network]\ncni_default_network = \"cbr0\"\n"},
			want:  []string{`/etc/crio/crio.conf sets cni_default_network to "cbr0"`},
		},
		"CRI-O, named in a drop-in": {
			files: map[string]string{
				"etc/crio/crio.conf":               "[crio.network]\ncni_default_network = \"cbr0\"\n",
				"etc/crio/crio.conf.d/20-mine.txt": "[crio.network]\ncni_default_network = \"other\"\nnetwork_dir = \"/etc/mine\"\n",
			},
			want: []string{
				`/etc/crio/crio.conf.d/20-mine.txt sets cni_default_network to "other"`,
				`/etc/crio/crio.conf.d/20-mine.txt sets network_dir to "/etc/mine"`,
			},
		},
		"CRI-O, taken back in a drop-in": {files: map[string]string{
			"etc/crio/crio.conf":           "[crio.network]\ncni_default_network = \"cbr0\"\n",
			"etc/crio/crio.conf.d/10.conf": "[crio.network]\ncni_default_network = \"\"\n",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := aNode(t, tt.files)
			root, err := h.open()
			must(t, err)
			defer func() { must(t, root.Close()) }()
			got, err := runtimes(root, NetworkTraces{})
			must(t, err)
			requireProblems(t, got, tt.want)
		})
	}
}

// requireProblems has as many of them as there should be, and each with the words that it should
// have.
func requireProblems(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("problems are %q, want %q", got, want)
	}
	for i, words := range want {
		if !strings.Contains(got[i], words) {
			t.Errorf("problem %d is %q, want %q", i, got[i], words)
		}
	}
}

// TestLinked: a file that is a link from the root of the node is read on the node, and not where
// the test runs.
func TestLinked(t *testing.T) {
	h := aNode(t, map[string]string{"nix/store/config.toml": v2Max + "2\n", "etc/containerd/x": "", "etc/cni/net.d/x": ""})
	must(t, os.Symlink("/nix/store/config.toml", filepath.Join(h.Root, containerdToml)))
	must(t, os.Symlink("/etc/cni/net.d", filepath.Join(h.Root, "etc/networks")))
	root, err := h.open()
	must(t, err)
	defer func() { must(t, root.Close()) }()
	got, err := runtimes(root, NetworkTraces{})
	must(t, err)
	requireProblems(t, got, []string{"sets max_conf_num to 2"})
	for dir, want := range map[string]bool{"/etc/networks": false, "/etc/cni/net.d/": false, "/etc/cni": true, "": false} {
		if got := elsewhere(root, dir); got != want {
			t.Errorf("that %q is elsewhere is %v", dir, got)
		}
	}
}

func TestUnready(t *testing.T) {
	calico, _ := Find("calico")
	for name, tt := range map[string]struct {
		files map[string]string
		want  []string
	}{
		"as it should be": {files: map[string]string{netd + "10-flannel.conflist": flannelList, netd + "10-calico.conflist.replumb": calicoList}},
		"no directory":    {want: []string{"no configuration of calico lies ready in /etc/cni/net.d"}},
		"not staged": {
			files: map[string]string{netd + "10-calico.conflist": calicoList},
			want:  []string{"no configuration of calico lies ready in /etc/cni/net.d"},
		},
		"two go first": {
			files: map[string]string{
				netd + "10-calico.conflist.replumb": calicoList, netd + "00-multus.conf": "{}", netd + "00-a.json": "{}", netd + "00-b.txt": "",
			},
			want: []string{"/etc/cni/net.d/00-a.json sorts before", "/etc/cni/net.d/00-multus.conf sorts before"},
		},
		"all of it": {
			files: map[string]string{netd + "00-multus.conf": "{}"},
			want:  []string{"no configuration of calico", "00-multus.conf sorts before"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			root, err := aNode(t, tt.files).open()
			must(t, err)
			defer func() { must(t, root.Close()) }()
			got, err := unready(root, calico)
			must(t, err)
			requireProblems(t, got, tt.want)
		})
	}
}

func TestMTUOf(t *testing.T) {
	for body, want := range map[string]int{
		`{"plugins": [{"type": "calico", "mtu": 1450}, {"type": "portmap"}]}`:             1450,
		`{"plugins": [{"type": "calico", "mtu": 0}]}`:                                     0,
		`{"plugins": [{"type": "calico", "mtu": "__CNI_MTU__"}]}`:                         0,
		`{"plugins": [{"type": "flannel", "delegate": {"mtu": 1400}}, {"type": "x"}]}`:    1400,
		`{"plugins": [{"type": "flannel"}, {"type": "tuning", "mtu": 1300, "mac": "x"}]}`: 1300,
		calicoList: 0,
	} {
		if got := mtuOf([]byte(body)); got != want {
			t.Errorf("%s: %d, want %d", body, got, want)
		}
	}
}
