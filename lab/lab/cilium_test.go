package lab

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/machine"
)

// ciliumLab is one that no program of runs.
func ciliumLab(modes ...ProxyMode) *Lab {
	topology := Default()
	topology.CNI, topology.Nodes = Cilium, modes
	return newLab(topology)
}

func TestCiliumManifests(t *testing.T) {
	manifests, err := ciliumLab(IPTables, NFTables).Addons().ciliumManifests(Default().PodCIDR, false)
	if err != nil {
		t.Fatal(err)
	}
	kinds, daemons := kindsIn(t, manifests)
	want := []string{
		"ConfigMap", "ServiceAccount", "ServiceAccount", "ClusterRole", "ClusterRole", "ClusterRoleBinding", "ClusterRoleBinding", "Role", "RoleBinding",
		"ConfigMap", "DaemonSet", "Deployment",
	}
	if !slices.Equal(kinds, want) {
		t.Errorf("there are %v, want %v", kinds, want)
	}
	requireNodesOwn(t, daemons)
	if daemons[0].Name != "cilium" || daemons[0].Spec.Template.Labels["k8s-app"] != "cilium" {
		t.Errorf("agents are of %s with labels %v", daemons[0].Name, daemons[0].Spec.Template.Labels)
	}
}

// TestCiliumCompilesOnce runs the script that agents have for clang, with a compiler that counts. Text or arguments that differ are compiled,
// folders of headers do not count, and what fails is not kept.
func TestCiliumCompilesOnce(t *testing.T) {
	compiler, compiled := t.TempDir(), t.TempDir()
	const counting = `#!/bin/sh
case "$*" in
*--version*) echo version ;;
*-E*) cat text ;;
*) echo >>compilations; grep -v wrong text || exit 1; echo "of $1" ;;
esac
`
	if err := os.WriteFile(filepath.Join(compiler, "clang"), []byte(counting), 0o755); err != nil {
		t.Fatal(err)
	}
	manifests, err := rendered("cilium.yaml", ciliumTemplate, map[string]any{"Clang": compiler, "Compiled": compiled})
	if err != nil {
		t.Fatal(err)
	}
	var config corev1.ConfigMap
	if err := yaml.Unmarshal(bytes.SplitN(manifests, []byte("\n---"), 2)[0], &config); err != nil {
		t.Fatal(err)
	}
	script, work := strings.ReplaceAll(config.Data["clang"], "/lab/compiled", compiled), t.TempDir()
	for _, step := range []struct {
		text, arguments string
		compilations    int
		want            string
	}{
		{"first", "-O2 -I/var/run/cilium/state/1 -c x.c -o -", 1, "first\nof -O2\n"},
		{"first", "-O2 -I/var/run/cilium/state/2 -c x.c -o -", 1, "first\nof -O2\n"},
		{"other", "-O2 -I/var/run/cilium/state/2 -c x.c -o -", 2, "other\nof -O2\n"},
		{"other", "-O1 -I/var/run/cilium/state/2 -c x.c -o -", 3, "other\nof -O1\n"},
		{"first", "-O2 -I/var/run/cilium/state/3 -c x.c -o -", 3, "first\nof -O2\n"},
		{"first", "--version", 3, "version\n"},
		{"first", "-O2 -c x.c -o x.o", 4, "first\nof -O2\n"},
	} {
		if err := os.WriteFile(filepath.Join(work, "text"), []byte(step.text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), "sh", append([]string{"-c", script, "clang"}, strings.Fields(step.arguments)...)...)
		cmd.Dir = work
		out, err := cmd.Output()
		count, _ := os.ReadFile(filepath.Join(work, "compilations"))
		if err != nil || string(out) != step.want || len(count) != step.compilations {
			t.Errorf("clang %s of %s: %q, %v, compiled %d times", step.arguments, step.text, out, err, len(count))
		}
	}
	if err := os.WriteFile(filepath.Join(work, "text"), []byte("wrong\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script, "clang", "-c", "x.c", "-o", "-")
	cmd.Dir = work
	if out, err := cmd.Output(); err == nil {
		t.Errorf("what cannot be compiled is %q", out)
	}
	if kept, err := os.ReadDir(compiled); err != nil || len(kept) != 3 {
		t.Errorf("kept are %v, %v", kept, err)
	}
}

// TestCiliumWritesNoKernelSettings looks at what stands between agents and settings that are the host's: no privileges, and a read-only mount.
func TestCiliumWritesNoKernelSettings(t *testing.T) {
	manifests, err := ciliumLab(NoProxy).Addons().ciliumManifests(Default().PodCIDR, true)
	if err != nil {
		t.Fatal(err)
	}
	_, daemons := kindsIn(t, manifests)
	pod := daemons[0].Spec.Template.Spec
	for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
		if p := c.SecurityContext.Privileged; p != nil && *p {
			t.Errorf("%s is privileged", c.Name)
		}
		for _, m := range c.VolumeMounts {
			if m.Name == "host-proc-sys-kernel" && !m.ReadOnly {
				t.Errorf("%s may write %s", c.Name, m.MountPath)
			}
		}
	}
	if !strings.Contains(string(manifests), "procfs: /host/proc\n") {
		t.Error("agents are not told to write below /host")
	}
}

// TestCiliumInPlaceOfKubeProxy has agents find the API without a Service, and only then.
func TestCiliumInPlaceOfKubeProxy(t *testing.T) {
	for _, tt := range []struct {
		modes    []ProxyMode
		replaces string
		host     string
	}{
		{[]ProxyMode{IPTables, NFTables}, "false", ""},
		{[]ProxyMode{NoProxy, NoProxy}, "true", "172.30.0.10"},
	} {
		l := ciliumLab(tt.modes...)
		manifests, err := l.Addons().ciliumManifests(Default().PodCIDR, l.Topology.withoutProxies())
		if err != nil {
			t.Fatal(err)
		}
		var config corev1.ConfigMap
		var operator appsv1.Deployment
		_, daemons := kindsIn(t, manifests)
		for doc := range bytes.SplitSeq(manifests, []byte("\n---\n")) {
			for kind, object := range map[string]any{"ConfigMap": &config, "Deployment": &operator} {
				if bytes.Contains(doc, []byte("\nkind: "+kind+"\n")) {
					if err := yaml.UnmarshalStrict(doc, object); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		if got := config.Data["kube-proxy-replacement"]; got != tt.replaces {
			t.Errorf("%v: kube-proxy-replacement is %q", tt.modes, got)
		}
		for _, pod := range []corev1.PodSpec{daemons[0].Spec.Template.Spec, operator.Spec.Template.Spec} {
			for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
				i := slices.IndexFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == "KUBERNETES_SERVICE_HOST" })
				if got := i >= 0 && c.Env[i].Value == tt.host; got != (tt.host != "") && c.Name != "install-cni-binaries" {
					t.Errorf("%v: %s is told of %v", tt.modes, c.Name, c.Env)
				}
			}
		}
		for _, m := range l.with(Worker) {
			proxies := slices.ContainsFunc(l.machines().programs(m), func(p machine.Program) bool { return p.Name == proxyProgram })
			config, err := nodeConfig(l.Topology, l.Binaries, m.Name, "/pods", m.Proxy, nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, configured := config[proxyConfigPath]; proxies != (tt.host == "") || configured != proxies {
				t.Errorf("%v: kube-proxy runs on %s: %v, is configured: %v", tt.modes, m.Name, proxies, configured)
			}
		}
	}
}

// TestCiliumImages has the sources of BPF where agents look for them, without their tests.
func TestCiliumImages(t *testing.T) {
	b := binaries{cilium: t.TempDir()}
	for _, file := range []string{"bpf_lxc.c", "include/bpf/api.h", "tests/unit.c", "test-progs/x.h"} {
		path := filepath.Join(b.cilium, "crd", file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	images, err := networkImages(Cilium, b)
	if err != nil {
		t.Fatal(err)
	}
	var sources []string
	for file := range images[0].More {
		if strings.HasPrefix(file, "var/lib/cilium/bpf/") {
			sources = append(sources, file)
		}
	}
	slices.Sort(sources)
	if want := []string{"var/lib/cilium/bpf/bpf_lxc.c", "var/lib/cilium/bpf/include/bpf/api.h"}; !slices.Equal(sources, want) {
		t.Errorf("sources are %v, want %v", sources, want)
	}
	if _, err := networkImages(Cilium, binaries{cilium: t.TempDir()}); err == nil {
		t.Error("sources are not missed")
	}
}

// TestCiliumIsBuiltForItsLabsOnly keeps a build of ten minutes from labs that do without.
func TestCiliumIsBuiltForItsLabsOnly(t *testing.T) {
	for _, cni := range allCNIs() {
		topology := Default()
		topology.CNI = cni
		for _, c := range component.All() {
			if c.Name == ciliumComponent && topology.runs(c) != (cni == Cilium) {
				t.Errorf("a lab with %s runs Cilium: %v", cni, topology.runs(c))
			}
			if c.Name == "calico" && topology.runs(c) && cni == Cilium {
				t.Error("a lab with Cilium is made to wait for Calico")
			}
		}
	}
}

func TestCiliumIsOfItsVersion(t *testing.T) {
	mod, err := os.ReadFile("../components/cilium/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(mod), "github.com/cilium/cilium "+ciliumVersion+"\n") {
		t.Errorf("it is not built from Cilium %s", ciliumVersion)
	}
}

// TestNodeThatJoins has a kube-proxy if the others have.
func TestNodeThatJoins(t *testing.T) {
	for _, tt := range []struct {
		modes       []ProxyMode
		asked, want ProxyMode
	}{
		{[]ProxyMode{NFTables}, "", IPTables},
		{[]ProxyMode{IPTables}, NFTables, NFTables},
		{[]ProxyMode{IPTables}, NoProxy, ""},
		{[]ProxyMode{NoProxy}, "", NoProxy},
		{[]ProxyMode{NoProxy}, IPTables, ""},
	} {
		_, mode, err := ciliumLab(tt.modes...).Workers().place(Joining{Proxy: tt.asked})
		if (err == nil) != (tt.want != "") || mode != tt.want {
			t.Errorf("beside %v, asked for %q: %q, %v", tt.modes, tt.asked, mode, err)
		}
	}
}
