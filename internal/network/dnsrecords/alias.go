package dnsrecords

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

const aliasWord = "ALIAS "

// AliasTTL bounds caching of answers made from an alias: AWS' load balancers have 60 seconds.
const AliasTTL = time.Minute

// Alias is a value of Route 53 for the present addresses of a load balancer.
type Alias struct {
	// Zone is the hosted zone of what it leads to, which is not the one that the record is in.
	Zone string
	// Name of what it leads to.
	Name string
	// Health says whether the health of what it leads to counts (EvaluateTargetHealth).
	Health bool
}

// IsAlias reports whether a value is one.
func IsAlias(value string) bool { return strings.HasPrefix(value, aliasWord) }

func aliased(values []string) bool { return len(values) == 1 && IsAlias(values[0]) }

// ParseAlias reads what String writes.
func ParseAlias(value string) (Alias, error) {
	words := strings.Fields(value)
	if len(words) < 3 || len(words) > 4 || words[0]+" " != aliasWord || len(words) == 4 && words[3] != aliasHealth {
		return Alias{}, fmt.Errorf("%q is no alias: write ALIAS, a hosted zone, a name and perhaps health", value)
	}
	a := Alias{Zone: words[1], Name: dns.CanonicalName(words[2]), Health: len(words) == 4}
	switch {
	case !hostedZone().MatchString(a.Zone):
		return Alias{}, fmt.Errorf("%q is not the ID of a hosted zone, such as Z35SXDOTRQ7X7K", a.Zone)
	case !hostname(a.Name):
		return Alias{}, fmt.Errorf("%q is not a name in full", words[2])
	}
	return a, nil
}

const aliasHealth = "health"

func hostedZone() *regexp.Regexp { return regexp.MustCompile(`^[A-Z0-9]{1,32}$`) }

func (a Alias) String() string {
	if a == (Alias{}) {
		return ""
	}
	text := aliasWord + a.Zone + " " + a.Name
	if a.Health {
		text += " " + aliasHealth
	}
	return text
}

// Host is what a value leads to: a name of a load balancer, or an address.
func Host(value string) string {
	if a, err := ParseAlias(value); err == nil {
		return strings.TrimSuffix(a.Name, ".")
	}
	return value
}

// follow accepts servers' addresses of an alias' target for the alias, which they do not name. An
// answer without address of its own is an API's.
func follow(answers []Answer, alias, addresses []string) []Answer {
	out := slices.Clone(answers)
	for i := range out {
		a := &out[i]
		strange := slices.ContainsFunc(a.Set.Values, func(v string) bool { return !slices.Contains(addresses, v) })
		if a.Server.Addr != "" && a.Err == nil && len(a.Set.Values) > 0 && !strange {
			a.Set.Values = alias
		}
	}
	return out
}
