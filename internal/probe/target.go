package probe

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strings"
	"time"
)

// Kind says how a target is probed.
type Kind string

const (
	// HTTP sends a GET over a fresh TCP connection each time, resolving the host each time if it is a name.
	HTTP Kind = "http"
	// Stream keeps one TCP connection open and expects each numbered line to be echoed.
	Stream Kind = "stream"
	// DNS looks a name up.
	DNS Kind = "dns"
	// API asks an API server, over HTTPS as the pod's ServiceAccount, for something strangers are refused; over a fresh
	// connection each time.
	API Kind = "api"
	// APIKept asks the same over one connection, kept open from request to request as HTTP/1.1 has it. A server may close
	// it between two requests: the next one then goes over a new connection, and nothing is lost.
	APIKept Kind = "api-kept"
)

// serviceAccountDir is where kubelet gives a pod its token and the cluster's authority.
const serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount/"

// Defaults of a Target.
const (
	DefaultRate = 10
	// DefaultTimeout is as patient as the less patient of real clients (a resolver waits 5 s, resolv.conf(5)). With less, a
	// busy machine that answers late counts as one that has lost something.
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
	Name string `json:"name"`
	Kind Kind   `json:"kind"`
	// Address is host:port; for DNS it is the name to look up.
	Address string `json:"address"`
	// Path of an HTTP or API request. If empty, "/" for HTTP; "/api" for API, which only who is known may read
	// (system:discovery).
	Path string `json:"path,omitempty"`
	// Rate is the number of requests per second.
	Rate float64 `json:"rate,omitempty"`
	// Timeout is how long one request may take from the moment it is sent.
	Timeout Duration `json:"timeout,omitempty"`
	// MaxInFlight bounds the requests under way. The default is enough to stay on schedule while every one times out.
	MaxInFlight int `json:"maxInFlight,omitempty"`
	// ExpectStatus is the HTTP status of a good answer; 200 if zero.
	ExpectStatus int `json:"expectStatus,omitempty"`
	// ExpectClientAddress, if set, is the client address the server must have seen: an IP, or Self.
	ExpectClientAddress string `json:"expectClientAddress,omitempty"`
	// Resolver is the host:port of the DNS server; the system's own if empty.
	Resolver string `json:"resolver,omitempty"`
	// Remember has an HTTP request go to the address that was looked up before, for as long as its time to live allows. Otherwise
	// each looks it up anew.
	Remember bool `json:"remember,omitempty"`
	// TokenFile and CAFile hold the token an API request is sent with and the authority the server's certificate is
	// verified with, for the host in Address; the pod's own if empty. The token is read anew for each request.
	TokenFile string `json:"tokenFile,omitempty"`
	CAFile    string `json:"caFile,omitempty"`
}

// Duration is a time.Duration written as "2s" in JSON.
type Duration time.Duration

// MarshalText writes the duration the way time.Duration prints.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads what time.ParseDuration understands.
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// ParseConfig reads a Config from JSON. Unknown fields are errors: a misspelt one would weaken a probe unnoticed.
func ParseConfig(data []byte) (Config, error) {
	decoder := json.NewDecoder(strings.NewReader(string(data)))
	decoder.DisallowUnknownFields()
	var config Config
	if err := decoder.Decode(&config); err != nil {
		return Config{}, fmt.Errorf("read probe configuration: %w", err)
	}
	return config, nil
}

// Resolve returns the configuration with defaults filled in and Self replaced by self, or what is wrong with it.
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

func (t Target) validate() error {
	switch {
	case t.Name == "":
		return errors.New("name is empty")
	case t.Kind != HTTP && t.Kind != Stream && t.Kind != DNS && !t.isAPI():
		return fmt.Errorf("kind %q is not one of http, stream, dns, api, api-kept", t.Kind)
	case (t.TokenFile != "" || t.CAFile != "") && !t.isAPI():
		return fmt.Errorf("tokenFile and caFile are for kinds %s and %s", API, APIKept)
	case t.Rate <= 0 || t.Rate > maxRate:
		return fmt.Errorf("rate %v is not between 0 and %d requests per second", t.Rate, maxRate)
	case t.Timeout < 0:
		return fmt.Errorf("timeout %v is negative", time.Duration(t.Timeout))
	case t.MaxInFlight < 0:
		return fmt.Errorf("maxInFlight %d is negative", t.MaxInFlight)
	}
	return t.validateAddresses()
}

func (t Target) validateAddresses() error {
	if t.Kind == DNS {
		if t.Address == "" || strings.Contains(t.Address, ":") {
			return fmt.Errorf("address %q is not a name to look up", t.Address)
		}
	} else if host, _, err := net.SplitHostPort(t.Address); err != nil || host == "" {
		return fmt.Errorf("address %q is not host:port", t.Address)
	}
	if t.Resolver != "" {
		if _, err := netip.ParseAddrPort(t.Resolver); err != nil {
			return fmt.Errorf("resolver %q is not IP:port", t.Resolver)
		}
	}
	if t.ExpectClientAddress == "" {
		return nil
	}
	if t.Kind == DNS || t.isAPI() {
		return fmt.Errorf("expectClientAddress cannot be checked by a probe of kind %s", t.Kind)
	}
	if _, err := netip.ParseAddr(t.ExpectClientAddress); err != nil {
		return fmt.Errorf("expectClientAddress %q is not an IP address (%q needs the prober's own address to be known)",
			t.ExpectClientAddress, Self)
	}
	return nil
}

func (t Target) interval() time.Duration {
	return time.Duration(float64(time.Second) / t.Rate)
}
