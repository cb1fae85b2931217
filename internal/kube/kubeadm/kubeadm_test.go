package kubeadm_test

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/kube/kubeadm"
	"github.com/replumb/replumb/internal/testing/pki"
)

func file(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func requireUnusual(t *testing.T, err error, part string) {
	t.Helper()
	if !errors.As(err, new(*kubeadm.UnusualError)) || !strings.Contains(err.Error(), part) {
		t.Errorf("the error is %v, want one about %q", err, part)
	}
}

// TestSetFlags changes what kubeadm 1.36 has written by the lines of the flags alone.
func TestSetFlags(t *testing.T) {
	text := file(t, "kube-controller-manager.yaml")
	m, err := kubeadm.ReadStaticPod("cm", "kube-controller-manager", text)
	if err != nil {
		t.Fatal(err)
	}
	edited, err := m.SetFlags(map[string]string{"service-cluster-ip-range": "172.24.0.0/16", "allocate-node-cidrs": "false"})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"-    - --allocate-node-cidrs=true", "+    - --allocate-node-cidrs=false",
		"-    - --service-cluster-ip-range=10.96.0.0/16", "+    - --service-cluster-ip-range=172.24.0.0/16",
	}
	if got := kubeadm.Diff(text, edited.Text); !slices.Equal(got, want) {
		t.Errorf("it differs by\n%s", strings.Join(got, "\n"))
	}
	back, err := edited.SetFlags(map[string]string{"service-cluster-ip-range": "10.96.0.0/16", "allocate-node-cidrs": "true"})
	if err != nil || !bytes.Equal(back.Text, text) {
		t.Errorf("the way back gives another file: %v", err)
	}
	for value, part := range map[string]string{"none": "0 times", "cluster-cidr=10.244.0.0/16 --x": "0 times"} {
		_, err := m.SetFlags(map[string]string{value: "1"})
		requireUnusual(t, err, part)
	}
}

func TestUnusualManifests(t *testing.T) {
	const flag = "    - --service-cluster-ip-range=10.96.0.0/16\n"
	for name, c := range map[string]struct{ old, is, part string }{
		"comment":        {"kind: Pod", "kind: Pod # Ansible managed", "something else manages it"},
		"comment above":  {"apiVersion", "# made at 10:14\napiVersion", "something else manages it"},
		"twice":          {flag, flag + flag, "2 times"},
		"apart":          {flag, "    - --service-cluster-ip-range\n    - 10.96.0.0/16\n", "without ="},
		"other program":  {"    - kube-apiserver\n", "    - wrapper\n", "does not run kube-apiserver"},
		"arguments":      {"    name: kube-apiserver\n    ports", "    name: kube-apiserver\n    args: [--v=4]\n    ports", "arguments"},
		"two documents":  {"status: {}\n", "status: {}\n---\nkind: Pod\n", "more than one document"},
		"two containers": {"  hostNetwork: true", "  - name: sidecar\n    image: x\n  hostNetwork: true", "2 containers"},
		"no pod":         {"kind: Pod", "kind: Pud", "kubeadm writes a Pod"},
		"unknown field":  {"  hostNetwork: true", "  hostNetworks: true", "is not a pod"},
		"not YAML":       {"kind: Pod", "kind: [", "is not a YAML object"},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(string(file(t, "kube-apiserver.yaml")), c.old, c.is, 1)
			m, err := kubeadm.ReadStaticPod("kube-apiserver.yaml", "kube-apiserver", []byte(text))
			if err == nil {
				_, err = m.SetFlags(map[string]string{"service-cluster-ip-range": "172.24.0.0/16"})
			}
			requireUnusual(t, err, c.part)
		})
	}
}

// TestQuoted keeps quotes that a manifest has.
func TestQuoted(t *testing.T) {
	for _, quote := range []string{`"`, `'`} {
		text := strings.Replace(string(file(t, "kube-apiserver.yaml")), "--service-cluster-ip-range=10.96.0.0/16",
			quote+"--service-cluster-ip-range=10.96.0.0/16"+quote, 1)
		m, err := kubeadm.ReadStaticPod("m", "kube-apiserver", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		edited, err := m.SetFlags(map[string]string{"service-cluster-ip-range": "172.24.0.0/16,fd00::/112"})
		if err != nil {
			t.Fatal(err)
		}
		if want := "- " + quote + "--service-cluster-ip-range=172.24.0.0/16,fd00::/112" + quote; !strings.Contains(string(edited.Text), want) {
			t.Errorf("it has no %s", want)
		}
	}
}

const kubeletText = `apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  anonymous:
    enabled: false
clusterDNS:
- 10.96.0.10
clusterDomain: cluster.local
kind: KubeletConfiguration
staticPodPath: /etc/kubernetes/manifests
`

func TestSetClusterDNS(t *testing.T) {
	from, to := []string{"10.96.0.10"}, []string{"172.24.0.10"}
	edited, err := kubeadm.SetClusterDNS("config.yaml", []byte(kubeletText), from, to)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.Replace(kubeletText, "10.96.0.10", "172.24.0.10", 1); string(edited) != want {
		t.Errorf("it is\n%s", edited)
	}
	again, err := kubeadm.SetClusterDNS("config.yaml", edited, from, to)
	if err != nil || !bytes.Equal(again, edited) {
		t.Errorf("a second time it is another: %v", err)
	}
	cached := strings.Replace(kubeletText, "10.96.0.10", "169.254.25.10", 1)
	if kept, err := kubeadm.SetClusterDNS("config.yaml", []byte(cached), from, to); err != nil || string(kept) != cached {
		t.Errorf("one that names a cache on its node is changed: %v\n%s", err, kept)
	}
	for old, part := range map[string]string{
		"- 10.96.0.10\n":            "has no list clusterDNS",
		"KubeletConfiguration":      "is of kind",
		"/etc/kubernetes/manifests": "has static pods in",
		"10.96.0.10":                "does not name 10.96.0.10",
		"cluster.local":             "has the comment",
	} {
		text := strings.Replace(kubeletText, old, map[string]string{
			"KubeletConfiguration": "Other", "/etc/kubernetes/manifests": "/opt/pods", "10.96.0.10": "10.96.0.11",
			"cluster.local": "cluster.local # by hand",
		}[old], 1)
		_, err := kubeadm.SetClusterDNS("config.yaml", []byte(text), from, to)
		requireUnusual(t, err, part)
	}
}

const clusterText = `apiServer: {}
apiVersion: kubeadm.k8s.io/v1beta4
caCertificateValidityPeriod: 87600h0m0s
certificateValidityPeriod: 8760h0m0s
certificatesDir: /etc/kubernetes/pki
clusterName: kubernetes
controllerManager: {}
dns: {}
encryptionAlgorithm: RSA-2048
etcd:
  local:
    dataDir: /var/lib/etcd
imageRepository: registry.k8s.io
kind: ClusterConfiguration
kubernetesVersion: v1.36.3
networking:
  dnsDomain: cluster.local
  podSubnet: 10.244.0.0/16
  serviceSubnet: 10.96.0.0/16
proxy: {}
scheduler: {}
`

func configuration(t *testing.T, text string) *kubeadm.Configuration {
	t.Helper()
	c, err := kubeadm.ReadConfiguration(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestConfiguration(t *testing.T) {
	a, b := netip.MustParseAddr("172.24.0.1"), netip.MustParseAddr("fd00::1")
	text, err := configuration(t, clusterText).SetServiceSubnet("172.24.0.0/16")
	if err != nil || text != strings.Replace(clusterText, "10.96.0.0/16", "172.24.0.0/16", 1) {
		t.Errorf("%v\n%s", err, text)
	}
	named, err := configuration(t, clusterText).AddCertSANs(a, b)
	if want := strings.Replace(clusterText, "apiServer: {}", "apiServer:\n  certSANs:\n  - 172.24.0.1\n  - 'fd00::1'", 1); err != nil || named != want {
		t.Errorf("%v\n%s", err, named)
	}
	more, err := configuration(t, named).AddCertSANs(a, netip.MustParseAddr("10.96.0.1"))
	if err != nil || !slices.Equal(configuration(t, more).CertSANs(), []string{"172.24.0.1", "fd00::1", "10.96.0.1"}) {
		t.Errorf("%v\n%s", err, more)
	}
	back, err := configuration(t, named).RemoveCertSANs(func(named netip.Addr) bool { return named == a || named == b })
	if err != nil || back != clusterText {
		t.Errorf("%v\n%s", err, back)
	}
}

func TestRefusedConfigurations(t *testing.T) {
	const flag = "service-cluster-ip-range"
	for text, part := range map[string]string{
		strings.Replace(clusterText, "kubernetes/pki", "kubernetes/keys", 1):                                                      "certificatesDir",
		strings.Replace(clusterText, "apiServer: {}", "apiServer:\n  extraArgs:\n  - name: "+flag+"\n    value: 10.96.0.0/16", 1): "apiServer.extraArgs",
		strings.Replace(clusterText, "controllerManager: {}", "controllerManager:\n  extraArgs:\n    "+flag+": 10.96.0.0/16", 1):  "controllerManager.extraArgs",
	} {
		requireUnusual(t, configuration(t, text).Refuse(flag), part)
	}
	if err := configuration(t, clusterText).Refuse(flag); err != nil {
		t.Error(err)
	}
}

// TestFlag: what kubeadm would write is by extraArgs before networking.
func TestFlag(t *testing.T) {
	const services, pods = "service-cluster-ip-range", "cluster-cidr"
	const api, manager = "kube-apiserver", "kube-controller-manager"
	listed := strings.Replace(clusterText, "apiServer: {}", "apiServer:\n  extraArgs:\n  - name: "+services+"\n    value: 10.97.0.0/16", 1)
	mapped := strings.Replace(clusterText, "controllerManager: {}", "controllerManager:\n  extraArgs:\n    "+pods+": 10.200.0.0/16", 1)
	unmanaged := strings.Replace(clusterText, "  podSubnet: 10.244.0.0/16\n", "", 1)
	for _, tt := range []struct{ text, program, flag, value, field string }{
		{clusterText, api, services, "10.96.0.0/16", "networking.serviceSubnet"},
		{clusterText, manager, services, "10.96.0.0/16", "networking.serviceSubnet"},
		{clusterText, manager, pods, "10.244.0.0/16", "networking.podSubnet"},
		{clusterText, api, pods, "", ""},
		{listed, api, services, "10.97.0.0/16", "apiServer.extraArgs"},
		{listed, manager, services, "10.96.0.0/16", "networking.serviceSubnet"},
		{mapped, manager, pods, "10.200.0.0/16", "controllerManager.extraArgs"},
		{unmanaged, manager, services, "", ""},
	} {
		if value, field := configuration(t, tt.text).Flag(tt.program, tt.flag); value != tt.value || field != tt.field {
			t.Errorf("--%s of %s would be %q by %q, want %q by %q", tt.flag, tt.program, value, field, tt.value, tt.field)
		}
	}
}

func TestSameRanges(t *testing.T) {
	moving := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("172.24.0.0/16")}
	for _, tt := range []struct {
		a, b string
		want bool
	}{
		{"10.96.0.0/16", "10.96.0.0/16", true},
		{"10.96.0.0/16", "172.24.0.0/16", true},
		{"10.96.0.0/16, fd00::/112", "172.24.0.0/16,fd00::/112", true},
		{"10.96.0.0/16,fd00::/112", "172.24.0.0/16", false},
		{"fd00::/112,10.96.0.0/16", "10.96.0.0/16,fd00::/112", false},
		{"10.96.0.0/12", "10.96.0.0/16", false},
	} {
		if got := kubeadm.SameRanges(tt.a, tt.b, moving); got != tt.want {
			t.Errorf("%s and %s: %v", tt.a, tt.b, got)
		}
	}
}

func TestReissue(t *testing.T) {
	authority, err := pki.NewCA("kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	other, err := pki.NewCA("other")
	if err != nil {
		t.Fatal(err)
	}
	serving, err := authority.Issue(pki.Request{
		CommonName: "kube-apiserver", Names: []string{"kubernetes"}, Addresses: []net.IP{net.IPv4(10, 96, 0, 1), net.IPv4(192, 0, 2, 11)},
	})
	if err != nil {
		t.Fatal(err)
	}
	pair := func(p pki.Pair) kubeadm.KeyPair { return kubeadm.KeyPair{Certificate: p.Cert, Key: p.Key} }
	also := netip.MustParseAddr("172.24.0.1")
	signed, err := kubeadm.Reissue("apiserver.crt", pair(serving), pair(authority.Pair), []netip.Addr{also})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.96.0.1", "192.0.2.11", "172.24.0.1"} {
		if !kubeadm.Names(signed, netip.MustParseAddr(address)) {
			t.Errorf("it does not name %s", address)
		}
	}
	again, err := kubeadm.Reissue("apiserver.crt", kubeadm.KeyPair{Certificate: signed, Key: serving.Key}, pair(authority.Pair), []netip.Addr{also})
	if err != nil || !bytes.Equal(again, signed) {
		t.Errorf("one that names all is signed again: %v", err)
	}
	_, err = kubeadm.Reissue("apiserver.crt", pair(serving), pair(other.Pair), []netip.Addr{also})
	requireUnusual(t, err, "is not signed by the authority")
	_, err = kubeadm.Reissue("apiserver.crt", kubeadm.KeyPair{Certificate: serving.Cert, Key: other.Key}, pair(authority.Pair), nil)
	requireUnusual(t, err, "is not of the key")
	_, err = kubeadm.Reissue("apiserver.crt", kubeadm.KeyPair{Certificate: append(bytes.Clone(serving.Cert), serving.Cert...), Key: serving.Key},
		pair(authority.Pair), nil)
	requireUnusual(t, err, "more than one certificate")
}
