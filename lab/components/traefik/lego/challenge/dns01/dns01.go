// Package dns01 has the options of challenges by DNS, which none takes.
package dns01

import (
	"strings"
	"time"
)

// Option is one.
type Option struct{}

// Options are those of a Client.
type Options struct{ RecursiveNameservers []string }

// Client asks for names.
type Client struct{}

// NewClient returns one.
func NewClient(*Options) *Client { return &Client{} }

// SetDefaultClient does nothing.
func SetDefaultClient(*Client) {}

// CondOptions is an option.
func CondOptions(bool, ...Option) Option { return Option{} }

// DisableAuthoritativeNssPropagationRequirement is an option.
func DisableAuthoritativeNssPropagationRequirement() Option { return Option{} }

// DisableRecursiveNSsPropagationRequirement is an option.
func DisableRecursiveNSsPropagationRequirement() Option { return Option{} }

// PropagationWait is an option.
func PropagationWait(time.Duration, bool) Option { return Option{} }

// UnFqdn is a name without the dot at its end. Traefik calls it for every certificate that it serves.
func UnFqdn(name string) string { return strings.TrimSuffix(name, ".") }
