package probe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"strings"
	"time"
)

// TargetKind says how a target is probed.
type TargetKind string

const (
	// HTTP sends a GET over a new connection each time, and resolves names again.
	HTTP TargetKind = "http"
	// TCP connects, and closes the connection.
	TCP TargetKind = "tcp"
	// UDP sends a numbered datagram from a new socket, and expects it back.
	UDP TargetKind = "udp"
	// Stream keeps one TCP connection open and expects each numbered line to be echoed.
	Stream TargetKind = "stream"
	// DNS looks a name up. A and AAAA must be answered, one of them maybe empty.
	DNS TargetKind = "dns"
	// API asks an API server over HTTPS, as the pod's ServiceAccount and over a new connection each
	// time, for something strangers are refused.
	API TargetKind = "api"
	// APIKept keeps its HTTP/1.1 connection. A server may close it between requests without a loss.
	APIKept TargetKind = "api-kept"
)

const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount/"

// Defaults of a Target.
const (
	DefaultRate = 10
	// DefaultTimeout is that of impatient real clients (resolvers wait 5 s, resolv.conf(5)): with
	// less, a busy machine counts as losing.
	DefaultTimeout = 5 * time.Second
	maxRate        = 10_000
)

// Self as ExpectClientAddress stands for the prober's own address; Config.Resolve replaces it.
const Self = "self"

// Config is what a probing client is given.
type Config struct {
	Targets []Target `json:"targets"`
}

// Target is one thing to probe.
type Target struct {
	// Name identifies the target in every Window; unique in a Config.
	Name string     `json:"name"`
	Kind TargetKind `json:"kind"`
	// Address is host:port; for DNS it is the name to look up.
	Address string `json:"address"`
	// Path of an HTTP or API request. Default: "/" for HTTP, "/api" for API (system:discovery).
	Path string `json:"path,omitempty"`
	// Host of an HTTP request and of a TLS certificate, if not that of Address.
	Host string `json:"host,omitempty"`
	// TLS has an HTTP request go over TLS. An API request always does.
	TLS bool `json:"tls,omitempty"`
	// Rate is the number of requests per second.
	Rate float64 `json:"rate,omitempty"`
	// Timeout is how long one request may take from the moment it is sent.
	Timeout Duration `json:"timeout,omitempty"`
	// MaxInFlight bounds requests under way; by default enough while all time out.
	MaxInFlight int `json:"maxInFlight,omitempty"`
	// ExpectStatus is the HTTP status of a good answer; 200 if zero.
	ExpectStatus int `json:"expectStatus,omitempty"`
	// ExpectClientAddress, if set, is what the server must see: one of several IPs with commas, or
	// Self.
	ExpectClientAddress string `json:"expectClientAddress,omitempty"`
	// ExpectServer, if set, is the echo server's name: another Service's is a failure.
	ExpectServer string `json:"expectServer,omitempty"`
	// Resolver is the host:port of the DNS server; the system's own if empty.
	Resolver string `json:"resolver,omitempty"`
	// Remember caches a look-up for its TTL. Otherwise each request looks up again.
	Remember bool `json:"remember,omitempty"`
	// Elsewhere fails requests to the machine itself or its link, whatever the name resolves to:
	// there are local services, such as cloud metadata.
	Elsewhere bool `json:"elsewhere,omitempty"`
	// TokenFile is an API request's token, read each time; the pod's own if empty.
	TokenFile string `json:"tokenFile,omitempty"`
	// CAFile has the PEM authorities of a TLS server, read for each request. Default: the system's
	// for HTTP, the pod's for API.
	CAFile string `json:"caFile,omitempty"`
	// InsecureSkipVerify has an HTTP request over TLS believe any server.
	InsecureSkipVerify bool `json:"insecureSkipVerify,omitempty"`
}

// Duration is a time.Duration written as "2s" in JSON.
type Duration time.Duration

func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// ParseConfig refuses unknown fields: a misspelt one would weaken a probe.
func ParseConfig(data []byte) (Config, error) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	var config Config
	if err := decoder.Decode(&config); err != nil {
		return Config{}, fmt.Errorf("read probe configuration: %w", err)
	}
	return config, nil
}

// Resolve fills in defaults and Self, and validates.
func (c Config) Resolve(self string) (Config, error) {
	if len(c.Targets) == 0 {
		return Config{}, errors.New("probe configuration names no targets")
	}
	resolved := Config{Targets: make([]Target, 0, len(c.Targets))}
	seen := map[string]bool{}
	for i, target := range c.Targets {
		if seen[target.Name] {
			return Config{}, fmt.Errorf("targets[%d]: name %q is used twice", i, target.Name)
		}
		seen[target.Name] = true
		target = target.withDefaults(self)
		if err := target.validate(); err != nil {
			return Config{}, fmt.Errorf("targets[%d] %q: %w", i, target.Name, err)
		}
		resolved.Targets = append(resolved.Targets, target)
	}
	return resolved, nil
}

func (t Target) isAPI() bool { return t.Kind == API || t.Kind == APIKept }

func (t Target) withDefaults(self string) Target {
	if t.Rate == 0 {
		t.Rate = DefaultRate
	}
	if t.Timeout == 0 {
		t.Timeout = Duration(DefaultTimeout)
	}
	if t.MaxInFlight == 0 {
		t.MaxInFlight = int(math.Ceil(t.Rate*time.Duration(t.Timeout).Seconds())) + 8
	}
	if t.ExpectClientAddress == Self && self != "" {
		t.ExpectClientAddress = self
	}
	if t.ExpectStatus == 0 && (t.Kind == HTTP || t.isAPI()) {
		t.ExpectStatus = 200
	}
	if t.Kind == HTTP {
		t.Path = cmp.Or(t.Path, "/")
	}
	if t.isAPI() {
		t.Path = cmp.Or(t.Path, "/api")
		t.TokenFile = cmp.Or(t.TokenFile, serviceAccountDir+"token")
		t.CAFile = cmp.Or(t.CAFile, serviceAccountDir+"ca.crt")
	}
	return t
}

func (t Target) serverName() (string, error) {
	if host, _, err := net.SplitHostPort(t.Host); err == nil {
		return host, nil
	}
	if t.Host != "" {
		return t.Host, nil
	}
	host, _, err := net.SplitHostPort(t.Address)
	return host, err
}

func (t Target) interval() time.Duration {
	return time.Duration(float64(time.Second) / t.Rate)
}

// url leaves out default ports, as clients do (RFC 9110, 4.2.3).
func (t Target) url() string {
	scheme, port := "http", ":80"
	if t.TLS {
		scheme, port = "https", ":443"
	}
	return scheme + "://" + strings.TrimSuffix(t.Address, port) + t.Path
}
