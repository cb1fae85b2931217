package lab

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"strings"
	"testing"

	"golang.org/x/crypto/bcrypt"
)

func withRegistry(host string) func(*Topology) {
	return func(t *Topology) {
		t.CNI, t.Edge, t.Networks, t.Registry = Calico, true, networks("a=172.30.0.0/24", "b=172.31.0.0/24"), host
	}
}

func TestRegistry(t *testing.T) {
	topology := Default()
	withRegistry("images.eu.lab.example")(&topology)
	l := newLab(topology)
	creds, err := newCredentials()
	if err != nil {
		t.Fatal(err)
	}
	l.SiteCA = creds.site.Cert
	m := l.member(registryName)
	if m == nil || m.Address.String() != "172.30.0.55" || m.Network != "a" {
		t.Fatalf("it is at %+v", m)
	}
	if got := l.Addons().registryRecords(); len(got) != 1 || got[0].Name != "images.eu" || got[0].Address != m.Address {
		t.Errorf("the zone has %v", got)
	}
	content, err := l.Addons().registryFiles(creds, m)
	if err != nil {
		t.Fatal(err)
	}
	r := l.Registry()
	user, hash, _ := strings.Cut(strings.TrimSpace(string(content[registryPasswordPath])), ":")
	if user != r.Username || bcrypt.CompareHashAndPassword([]byte(hash), []byte(r.Password)) != nil {
		t.Errorf("%s does not let %s in", content[registryPasswordPath], r.Username)
	}
	pair, err := tls.X509KeyPair(content[registryServingBase+".crt"], content[registryServingBase+".key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(r.CA)
	for _, name := range []string{r.Host, "registry", "172.30.0.55"} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name}); err != nil {
			t.Error(err)
		}
	}
	if config := string(content[registryConfigPath]); !strings.Contains(config, "realm: images.eu.lab.example") ||
		strings.Contains(config, r.Password) {
		t.Errorf("configuration:\n%s", config)
	}
	hosts := l.Addons().registryHosts()
	const dir = "/etc/containerd/certs.d/images.eu.lab.example/"
	if got := string(hosts[dir+"hosts.toml"]); !strings.Contains(got, `[host."https://images.eu.lab.example"]`) ||
		!strings.Contains(got, `ca = "`+dir+`ca.crt"`) || string(hosts[dir+"ca.crt"]) != string(r.CA) {
		t.Errorf("containerd gets:\n%s", got)
	}
	if got := containerdConfig(
		HostLocal,
		binaries{},
	) + registryConfig(
		topology,
	); !strings.Contains(
		got,
		`config_path = "/etc/containerd/certs.d"`,
	) {
		t.Errorf("containerd looks for nothing: %s", got)
	}
}

func TestRegistryDockerConfig(t *testing.T) {
	data, err := (&Registry{Host: "registry.lab.example", Username: "lab", Password: "secret"}).DockerConfig()
	if err != nil || !json.Valid(data) ||
		string(data) != `{"auths":{"registry.lab.example":{"username":"lab","password":"secret"}}}` {
		t.Errorf("%s, %v", data, err)
	}
}

func TestNoRegistry(t *testing.T) {
	l := newLab(Default())
	if l.Registry() != nil || l.Addons().registryHosts() != nil || registryConfig(l.Topology) != "" || len(l.with(ImageRegistry)) != 0 {
		t.Error("a lab has something of a registry that it is not to have")
	}
	if err := l.Addons().
		Push(t.Context(), "replumb.local/echo:lab", "shop/echo:1"); err == nil ||
		!strings.Contains(err.Error(), "has none") {
		t.Errorf("pushing: %v", err)
	}
	for component, want := range map[string]bool{"registry": false, "certmanager": false, "calico": false, "containerd": true} {
		if got := l.Topology.needs(component); got != want {
			t.Errorf("that it needs %s is %v", component, got)
		}
	}
}
