package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/template"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/crypto/bcrypt"

	"github.com/replumb/replumb/internal/testing/pki"
	"github.com/replumb/replumb/lab/machine"
	"github.com/replumb/replumb/lab/named"
)

// registryName is the machine that the image registry runs on.
const registryName = "registry"

// Where it has its files, and containerd those about it.
const (
	registryConfigPath   = "/etc/distribution/config.yml"
	registryPasswordPath = "/etc/distribution/htpasswd"
	registryServingBase  = "/etc/distribution/tls"
	registryStore        = "/var/lib/registry"
	certsDir             = "/etc/containerd/certs.d"
)

const registryPort = 443

// Registry is where images are pulled from by who has the credentials. All others get 401.
type Registry struct {
	Host               string
	Username, Password string
	CA                 []byte // of who has signed the certificate it serves with; PEM
}

// DockerConfig is what a Secret of type kubernetes.io/dockerconfigjson holds for pods that may pull from the registry.
func (r *Registry) DockerConfig() ([]byte, error) {
	type login struct {
		Username string `json:"username"`
		Password string `json:"password"`
	}
	return json.Marshal(map[string]map[string]login{"auths": {r.Host: {r.Username, r.Password}}})
}

// Registry is the image registry of a lab; nil, if it has none.
func (l *Lab) Registry() *Registry {
	if l.Topology.Registry == "" {
		return nil
	}
	return &Registry{Host: l.Topology.Registry, Username: "lab", Password: l.RegistryPassword, CA: l.SiteCA}
}

// RequireRegistry is Registry, or an *InvalidError if there is none.
func (l Addons) RequireRegistry() (*Registry, error) {
	r := l.Registry()
	if r == nil {
		return nil, &InvalidError{
			"registry",
			fmt.Sprintf("lab %s has none", l.Topology.Name),
			"bring it up with --edge --registry registry." + Zone,
		}
	}
	return r, nil
}

// validHost has labels of the kind that both host names and image references take.
var validHost = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

func (t Topology) validateRegistry() error {
	host, inZone := strings.CutSuffix(t.Registry, "."+Zone)
	switch {
	case t.Registry == "":
		return nil
	case !t.Edge:
		return &InvalidError{"registry", "nodes find it by a name, and this lab has no name server", "add --edge"}
	case !inZone || !validHost.MatchString(host):
		return &InvalidError{
			"registry", fmt.Sprintf("%q is not a host name in %s", t.Registry, Zone), "write it like registry." + Zone,
		}
	case slices.Contains([]string{apiLabel, ingressLabel, nameServerName}, host):
		return &InvalidError{"registry", t.Registry + " is the name of something else", "write it like registry." + Zone}
	}
	return nil
}

// registryRecords are those of the zone that lead to the registry.
func (l Addons) registryRecords() []named.Record {
	var records []named.Record
	for _, m := range l.with(ImageRegistry) {
		records = append(records, named.Record{Name: strings.TrimSuffix(l.Topology.Registry, "."+Zone), Address: m.Address})
	}
	return records
}

func registryPrograms(b binaries) []machine.Program {
	return []machine.Program{{
		Name: registryName, Argv: []string{filepath.Join(b.registry, "registry"), "serve", registryConfigPath},
		// By default it tells a collector of traces on this machine what it does, and complains that there is none.
		Env: []string{"OTEL_TRACES_EXPORTER=none"},
	}}
}

//go:embed registry.yaml
var registryTemplate string

// registryFiles are the registry's configuration, its certificate, and who may use it. They are made once.
func (l Addons) registryFiles(c *credentials, m *Member) (map[string][]byte, error) {
	l.RegistryPassword = newPassword()
	hash, err := bcrypt.GenerateFromPassword([]byte(l.RegistryPassword), bcrypt.MinCost)
	if err != nil {
		return nil, err
	}
	t, err := template.New("registry.yaml").Parse(registryTemplate)
	if err != nil {
		return nil, err
	}
	var config bytes.Buffer
	err = t.Execute(&config, map[string]any{
		"Store": registryStore, "Port": registryPort, "Base": registryServingBase, "Passwords": registryPasswordPath,
		"Realm": l.Topology.Registry,
	})
	if err != nil {
		return nil, err
	}
	var f files
	f.add(registryConfigPath, config.Bytes())
	f.add(registryPasswordPath, fmt.Appendf(nil, "%s:%s\n", l.Registry().Username, hash))
	f.issue(registryServingBase, c.site, pki.Request{
		CommonName: l.Topology.Registry, Names: []string{l.Topology.Registry, m.Name}, Addresses: []net.IP{ip(m.Address)},
	})
	return f.content, f.err
}

// passwordBytes are as many as make a password that is not guessed.
const passwordBytes = 16

func newPassword() string {
	secret := make([]byte, passwordBytes)
	_, _ = rand.Read(secret) // it never fails
	return hex.EncodeToString(secret)
}

// registryConfig is the part of containerd's configuration that has it look for what is known of registries, by host.
func registryConfig(t Topology) string {
	if t.Registry == "" {
		return ""
	}
	return fmt.Sprintf("\n[plugins.\"io.containerd.cri.v1.images\".registry]\n  config_path = %q\n", certsDir)
}

// registryHosts is what containerd on a node knows of the registry: who signed its certificate. Credentials come with pods.
func (l Addons) registryHosts() map[string][]byte {
	r := l.Registry()
	if r == nil {
		return nil
	}
	dir := filepath.Join(certsDir, r.Host)
	ca := filepath.Join(dir, "ca.crt")
	hosts := fmt.Sprintf(
		"server = \"https://%[1]s\"\n\n[host.\"https://%[1]s\"]\n  capabilities = [\"pull\", \"resolve\"]\n  ca = %[2]q\n",
		r.Host,
		ca,
	)
	return map[string][]byte{filepath.Join(dir, "hosts.toml"): []byte(hosts), ca: r.CA}
}

// Push puts one of the lab's images, such as replumb.local/echo:lab, into its registry, under a name and tag there, such as
// shop/echo:1. It waits until the registry takes connections, and fails with an *InvalidError if the lab has none.
func (l Addons) Push(ctx context.Context, image, as string) error {
	r, err := l.RequireRegistry()
	if err != nil {
		return err
	}
	from, err := name.NewTag(image)
	if err != nil {
		return fmt.Errorf("image %q: %w", image, err)
	}
	to, err := name.NewTag(r.Host + "/" + as)
	if err != nil {
		return fmt.Errorf("name %q: %w", as, err)
	}
	content, err := tarball.ImageFromPath(l.Images, &from)
	if err != nil {
		return fmt.Errorf("image %s: %w", image, err)
	}
	return l.push(ctx, r, to, func(options ...remote.Option) error { return remote.Write(to, content, options...) })
}

// push has something written to the registry, once that answers.
func (l Addons) push(ctx context.Context, r *Registry, to name.Tag, write func(...remote.Option) error) error {
	transport, err := l.registryTransport()
	if err != nil {
		return err
	}
	if err := until(ctx, "the image registry", func(ctx context.Context) error { return answers(ctx, transport, r.Host) }); err != nil {
		return err
	}
	credentials := authn.FromConfig(authn.AuthConfig{Username: r.Username, Password: r.Password})
	if err := write(remote.WithContext(ctx), remote.WithTransport(transport), remote.WithAuth(credentials)); err != nil {
		return fmt.Errorf("push %s: %w", to, err)
	}
	return nil
}

// registryTransport connects from the registry's own machine, whatever the name in a request: the host has no way to it.
func (l Addons) registryTransport() (*http.Transport, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(l.SiteCA) {
		return nil, fmt.Errorf("lab %s has no certificate of its authority", l.Topology.Name)
	}
	on, err := l.Machine(registryName)
	if err != nil {
		return nil, err
	}
	address := netip.AddrPortFrom(l.member(registryName).Address, registryPort).String()
	return &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return on.Dial(ctx, "tcp", address) },
		TLSClientConfig:   &tls.Config{RootCAs: roots},
		DisableKeepAlives: true,
	}, nil
}

// answers fails unless the registry says that it wants credentials.
func answers(ctx context.Context, transport http.RoundTripper, host string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+"/v2/", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	if err := response.Body.Close(); err != nil {
		return err
	}
	if response.StatusCode != http.StatusUnauthorized {
		return fmt.Errorf("it answers %s to who has no credentials", response.Status)
	}
	return nil
}
