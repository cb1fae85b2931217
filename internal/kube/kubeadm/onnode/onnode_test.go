package onnode_test

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/kube/kubeadm"
	"github.com/replumb/replumb/internal/kube/kubeadm/onnode"
	"github.com/replumb/replumb/internal/testing/pki"
)

// node is a folder with the files of a node, and what stands for its kubelet: it runs whatever the
// manifest says, unless that names what is broken.
type node struct {
	*testing.T
	onnode.NodeFiles
	broken string
	// filled is a file that cannot be written once the broken program was to run.
	filled string
	server *httptest.Server
	pids   atomic.Int64
	down   atomic.Bool
}

const program = "kube-apiserver"

func newNode(t *testing.T) *node {
	t.Helper()
	root := t.TempDir()
	n := &node{T: t, NodeFiles: onnode.NodeFiles{
		Root: root, Proc: filepath.Join(root, "proc"), Migration: "move", Patience: 3 * time.Second,
	}}
	n.pids.Store(100)
	n.server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(n.server.Close)
	n.put("/proc/1/cmdline", "init\x00")
	return n
}

func (n *node) put(file, text string) {
	n.Helper()
	path := filepath.Join(n.Root, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.Fatal(err)
	}
}

func (n *node) get(file string) string {
	n.Helper()
	text, err := os.ReadFile(filepath.Join(n.Root, file))
	if err != nil {
		n.Fatal(err)
	}
	return string(text)
}

func (n *node) has(file string) bool {
	_, err := os.Stat(filepath.Join(n.Root, file))
	return err == nil
}

const manifest = "/etc/kubernetes/manifests/kube-apiserver.yaml"

// withManifest has a manifest of kubeadm's, whose program runs from now on as it says.
func (n *node) withManifest() *node {
	n.Helper()
	host, port, _ := net.SplitHostPort(n.server.Listener.Addr().String())
	text, err := os.ReadFile("../testdata/kube-apiserver.yaml")
	if err != nil {
		n.Fatal(err)
	}
	n.put(manifest, strings.NewReplacer("host: 192.0.2.11", "host: "+host, "containerPort: 6443", "containerPort: "+port).Replace(string(text)))
	n.run()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-tick.C {
			n.run()
		}
	}()
	n.Cleanup(func() { cancel(); <-done })
	return n
}

// run has the process of the manifest run, as a kubelet would.
func (n *node) run() {
	text, err := os.ReadFile(filepath.Join(n.Root, manifest))
	if err != nil {
		return
	}
	m, err := kubeadm.ReadStaticPod(manifest, program, text)
	if err != nil || n.broken != "" && strings.Contains(string(text), n.broken) {
		_ = os.RemoveAll(filepath.Join(n.Proc, "7"))
		if n.filled != "" {
			n.full(n.filled)
		}
		return
	}
	_ = os.MkdirAll(filepath.Join(n.Proc, "7"), 0o755)
	_ = os.WriteFile(filepath.Join(n.Proc, "7", "cmdline"), []byte(strings.Join(m.Pod.Spec.Containers[0].Command, "\x00")+"\x00"), 0o600)
}

func change() onnode.FlagChange {
	return onnode.FlagChange{
		Program: program,
		From:    map[string]string{"service-cluster-ip-range": "10.96.0.0/16"}, To: map[string]string{"service-cluster-ip-range": "172.24.0.0/16"},
	}
}

func TestSetFlags(t *testing.T) {
	n := newNode(t).withManifest()
	before := n.get(manifest)
	for range 2 { // the second time there is nothing to do
		if err := n.SetFlags(t.Context(), change()); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := n.get(manifest), strings.Replace(before, "=10.96.0.0/16", "=172.24.0.0/16", 1); got != want {
		t.Errorf("the manifest is\n%s", got)
	}
	if n.get("/etc/kubernetes/replumb/move/kube-apiserver.yaml") != before {
		t.Error("the backup is not the former manifest")
	}
	entries, err := os.ReadDir(filepath.Join(n.Root, kubeadm.ManifestsDir))
	if err != nil || len(entries) != 1 {
		t.Errorf("the folder of manifests has %v, which the kubelet would run", entries)
	}
	if err := n.Forget(); err != nil || n.has("/etc/kubernetes/replumb") {
		t.Errorf("backups are left: %v", err)
	}
	if err := n.Forget(); err != nil {
		t.Error(err)
	}
}

// TestDeadMansSwitch has a server that does not come up: its manifest is as before, and it runs.
func TestDeadMansSwitch(t *testing.T) {
	n := newNode(t)
	n.broken = "172.24.0.0/16"
	n.withManifest()
	before := n.get(manifest)
	err := n.SetFlags(t.Context(), change())
	if err == nil || !strings.Contains(err.Error(), "does not run as its manifest says; "+manifest+" is as it was before, and it runs again") {
		t.Errorf("the error is %v", err)
	}
	if n.get(manifest) != before {
		t.Error("the manifest is another than before")
	}
	// A pod that was killed after its rename has the same duty.
	n.put(manifest, strings.Replace(before, "=10.96.0.0/16", "=172.24.0.0/16", 1))
	if err := n.SetFlags(t.Context(), change()); err == nil || n.get(manifest) != before {
		t.Errorf("after a kill the manifest is another than before: %v", err)
	}
}

func TestUnreadyServerIsNotBack(t *testing.T) {
	n := newNode(t).withManifest()
	n.down.Store(true)
	err := n.SetFlags(t.Context(), change())
	if err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("the error is %v", err)
	}
}

func TestRefusesAnotherValue(t *testing.T) {
	n := newNode(t).withManifest()
	before := strings.Replace(n.get(manifest), "=10.96.0.0/16", "=10.97.0.0/16", 1)
	n.put(manifest, before)
	err := n.SetFlags(t.Context(), change())
	if err == nil || !strings.Contains(err.Error(), "has --service-cluster-ip-range=10.97.0.0/16, which was to become 172.24.0.0/16 from 10.96.0.0/16") {
		t.Errorf("the error is %v", err)
	}
	if n.get(manifest) != before || n.has("/etc/kubernetes/replumb") {
		t.Error("something was written")
	}
}

// full has the next write of a new file fail as on a full disk: what is written first leads to
// /dev/full.
func (n *node) full(file string) {
	n.Helper()
	path := filepath.Join(n.Root, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		n.Fatal(err)
	}
	if err := os.Symlink("/dev/full", path); err != nil && !errors.Is(err, fs.ErrExist) {
		n.Error(err)
	}
}

const newManifest = "/etc/kubernetes/replumb/move/.kube-apiserver.yaml.new"

// TestFullDisk: the backup comes first, and then the manifest; without either nothing has changed.
func TestFullDisk(t *testing.T) {
	n := newNode(t).withManifest()
	before := n.get(manifest)
	for _, part := range []string{"writing /etc/kubernetes/replumb/move/kube-apiserver.yaml", "writing " + manifest} {
		n.full(newManifest)
		err := n.SetFlags(t.Context(), change())
		if err == nil || !strings.Contains(err.Error(), part+", which is as it was: no space left on device") {
			t.Errorf("the error is %v, want one about %s", err, part)
		}
		if n.get(manifest) != before || n.has(newManifest) {
			t.Error("something else than before is left")
		}
		n.put("/etc/kubernetes/replumb/move/kube-apiserver.yaml", before)
	}
}

// TestFullDiskOnTheWayBack: a server does not come up, and there is no space for its former file.
func TestFullDiskOnTheWayBack(t *testing.T) {
	n := newNode(t)
	n.broken, n.filled = "172.24.0.0/16", newManifest
	n.withManifest()
	before := n.get(manifest)
	err := n.SetFlags(t.Context(), change())
	if err == nil || !strings.Contains(err.Error(), manifest+" is as it was before, and it runs again") || n.get(manifest) != before {
		t.Errorf("the error is %v", err)
	}
}

func TestAddNames(t *testing.T) {
	n := newNode(t).withManifest()
	authority, err := pki.NewCA("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := authority.Issue(pki.Request{CommonName: program, Names: []string{"kubernetes"}, Addresses: []net.IP{net.IPv4(10, 96, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range map[string][]byte{
		"apiserver.crt": serving.Cert, "apiserver.key": serving.Key, "ca.crt": authority.Cert, "ca.key": authority.Key,
	} {
		n.put(kubeadm.PKIDir+"/"+file, string(text))
	}
	if err := n.LookAtControlPlane(true, change()); err != nil {
		t.Fatal(err)
	}
	n.server.TLS.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { // as API servers read their files again
		pair, err := tls.LoadX509KeyPair(filepath.Join(n.Root, kubeadm.PKIDir, "apiserver.crt"), filepath.Join(n.Root, kubeadm.PKIDir, "apiserver.key"))
		return &pair, err
	}
	n.server.TLS.Certificates = nil
	also := netip.MustParseAddr("172.24.0.1")
	for range 2 {
		if err := n.AddNames(t.Context(), []netip.Addr{also}); err != nil {
			t.Fatal(err)
		}
	}
	if block, _ := pem.Decode([]byte(n.get(kubeadm.PKIDir + "/apiserver.crt"))); block == nil {
		t.Fatal("there is no certificate")
	}
	if err := n.RemoveNames(); err != nil || n.get(kubeadm.PKIDir+"/apiserver.crt") != string(serving.Cert) {
		t.Errorf("the former certificate is not back: %v", err)
	}
	if err := os.Remove(filepath.Join(n.Root, kubeadm.PKIDir, "ca.key")); err != nil {
		t.Fatal(err)
	}
	if err := n.LookAtControlPlane(true); err == nil || !strings.Contains(err.Error(), "ca.key is not on this node") {
		t.Errorf("without the key of the authority it says %v", err)
	}
}

const kubeletConfig = "/var/lib/kubelet/config.yaml"

// withKubelet has a kubelet that systemd restarts, unless its configuration is broken.
func (n *node) withKubelet(flags ...string) *node {
	n.Helper()
	health := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if n.broken != "" && strings.Contains(n.get(kubeletConfig), n.broken) {
			http.Error(w, "broken", http.StatusInternalServerError)
		}
	}))
	n.Cleanup(health.Close)
	_, port, _ := net.SplitHostPort(health.Listener.Addr().String())
	n.put(kubeletConfig, fmt.Sprintf("clusterDNS:\n- 10.96.0.10\nhealthzPort: %s\nkind: KubeletConfiguration\n", port))
	command := strings.Join(append([]string{"/usr/bin/kubelet", "--config=" + kubeletConfig}, flags...), "\x00")
	start := func() { n.put("/proc/"+strconv.FormatInt(n.pids.Add(1), 10)+"/cmdline", command) }
	start()
	n.NodeFiles.Run = func(_ context.Context, args ...string) (string, error) {
		if args[1] == "restart" {
			if err := os.RemoveAll(filepath.Join(n.Proc, strconv.FormatInt(n.pids.Load(), 10))); err != nil {
				return "", err
			}
			start()
		}
		return "active", nil
	}
	return n
}

func TestSetClusterDNS(t *testing.T) {
	n := newNode(t).withKubelet()
	from, to := []string{"10.96.0.10"}, []string{"172.24.0.10"}
	before := n.get(kubeletConfig)
	for range 2 {
		if err := n.SetClusterDNS(t.Context(), from, to); err != nil {
			t.Fatal(err)
		}
	}
	if n.get(kubeletConfig) != strings.Replace(before, from[0], to[0], 1) || n.pids.Load() != 102 {
		t.Errorf("the file is %s, and the kubelet was started %d times", n.get(kubeletConfig), n.pids.Load()-100)
	}
	// One that was killed between the file and the restart restarts it.
	n.put("/etc/kubernetes/replumb/move/kubelet.restarting", "")
	if err := n.SetClusterDNS(t.Context(), from, to); err != nil || n.pids.Load() != 103 {
		t.Errorf("%v, and the kubelet was started %d times", err, n.pids.Load()-100)
	}
}

func TestKubeletThatDoesNotComeBack(t *testing.T) {
	n := newNode(t)
	n.broken = "172.24.0.10"
	n.withKubelet()
	before := n.get(kubeletConfig)
	err := n.SetClusterDNS(t.Context(), []string{"10.96.0.10"}, []string{"172.24.0.10"})
	if err == nil || !strings.Contains(err.Error(), "is as it was before, and it runs again") || n.get(kubeletConfig) != before {
		t.Errorf("the error is %v", err)
	}
}

// TestKubeletThatNeverComesBack says both why the new file was taken back and what is with the old
// one.
func TestKubeletThatNeverComesBack(t *testing.T) {
	n := newNode(t)
	n.broken = "KubeletConfiguration" // whatever it names
	n.withKubelet()
	before := n.get(kubeletConfig)
	err := n.SetClusterDNS(t.Context(), []string{"10.96.0.10"}, []string{"172.24.0.10"})
	if err == nil || !strings.Contains(err.Error(), "and with "+kubeletConfig+" as it was before: after 3s: ") || n.get(kubeletConfig) != before {
		t.Errorf("the error is %v", err)
	}
}

func TestKubeletOnFullDisk(t *testing.T) {
	n := newNode(t).withKubelet()
	before := n.get(kubeletConfig)
	n.full("/var/lib/kubelet/.config.yaml.replumb")
	err := n.SetClusterDNS(t.Context(), []string{"10.96.0.10"}, []string{"172.24.0.10"})
	if err == nil || !strings.Contains(err.Error(), "writing "+kubeletConfig+", which is as it was: no space left on device") ||
		n.get(kubeletConfig) != before || n.pids.Load() != 101 {
		t.Errorf("the error is %v, and the kubelet was started %d times", err, n.pids.Load()-100)
	}
}

func TestUnusualKubelets(t *testing.T) {
	for flag, part := range map[string]string{
		"--cluster-dns=10.96.0.10": "is run with --cluster-dns", "--config-dir=/etc/kubelet.d": "is run with --config-dir",
		"--config=/etc/other.yaml": "is not run with --config",
	} {
		n := newNode(t).withKubelet(flag)
		err := n.LookAtKubelet(t.Context(), []string{"10.96.0.10"}, []string{"172.24.0.10"})
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%s: the error is %v", flag, err)
		}
	}
}
