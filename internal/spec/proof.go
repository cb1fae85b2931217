package spec

import (
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
)

// maxRate is the most requests a second that one probe sends from one node.
const maxRate = 1000

func validateProof(p *v1alpha1.ProofSpec) error {
	for _, check := range []func() error{
		func() error {
			return oneOf("spec.proof.agents", p.Agents, "", v1alpha1.AgentsEnabled, v1alpha1.AgentsDisabled)
		},
		func() error {
			return oneOf("spec.proof.onLoss", p.OnLoss, "", v1alpha1.OnLossPause, v1alpha1.OnLossRollback)
		},
		func() error {
			return within("spec.proof.rate", p.Rate, 0, maxRate, "5 is enough to see a loss of a second")
		},
		func() error { return within("spec.proof.budget", p.Budget, 0, 1<<30, "0 tolerates no loss") },
		func() error { return notNegative("spec.proof.soak", p.Soak) },
		func() error {
			if p.Wait == nil {
				return nil
			}
			return validateTimeout("spec.proof.wait", p.Wait)
		},
	} {
		if err := check(); err != nil {
			return err
		}
	}
	names := map[string]string{}
	for i := range p.Probes {
		if err := validateProbe(fmt.Sprintf("spec.proof.probes[%d]", i), &p.Probes[i], names); err != nil {
			return err
		}
	}
	return nil
}

func validateProbe(field string, p *v1alpha1.ProbeSpec, names map[string]string) error {
	if err := name(field+".name", p.Name, names); err != nil {
		return err
	}
	if slices.Contains(v1alpha1.OwnProbes(), p.Name) {
		return &Error{
			Field:   field + ".name",
			Problem: fmt.Sprintf("%q is one of replumb's own probes", p.Name),
			Hint:    "give it another name",
		}
	}
	err := oneOf(field+".kind", p.Kind, v1alpha1.RequestTCP, v1alpha1.RequestHTTP, v1alpha1.RequestStream, v1alpha1.RequestUDP,
		v1alpha1.RequestDNS)
	if err != nil {
		return err
	}
	if err := oneOf(field+".from", p.From, "", v1alpha1.FromHost, v1alpha1.FromPod, v1alpha1.FromBoth); err != nil {
		return err
	}
	if err := within(field+".rate", p.Rate, 0, maxRate, "5 is enough to see a loss of a second"); err != nil {
		return err
	}
	if p.Timeout != nil {
		if err := validateTimeout(field+".timeout", p.Timeout); err != nil {
			return err
		}
	}
	if p.ExpectStatus != 0 {
		if p.Kind != v1alpha1.RequestHTTP {
			return &Error{Field: field + ".expectStatus", Problem: "is for kind HTTP only", Hint: "leave it out"}
		}
		if err := within(field+".expectStatus", p.ExpectStatus, 100, 599, "200 is usual"); err != nil {
			return err
		}
	}
	return probeAddress(field+".address", p)
}

// probeAddress refuses an address that does not fit the kind. A URL is not quoted: it may hold a secret.
func probeAddress(field string, p *v1alpha1.ProbeSpec) error {
	switch p.Kind {
	case v1alpha1.RequestHTTP:
		u, err := url.Parse(p.Address)
		if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return &Error{
				Field:   field,
				Problem: "is not a URL with scheme http or https",
				Hint:    "write it like http://shop.example:8080/health",
			}
		}
	case v1alpha1.RequestDNS:
		if p.Address == "" || strings.ContainsAny(p.Address, ":/ ") {
			return &Error{Field: field, Problem: fmt.Sprintf("%q is not a name to look up", p.Address), Hint: "write it like shop.example"}
		}
	default:
		host, port, err := net.SplitHostPort(p.Address)
		if _, portErr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || portErr != nil {
			return &Error{Field: field, Problem: fmt.Sprintf("%q is not host:port", p.Address), Hint: "write it like 192.0.2.10:5432"}
		}
	}
	return nil
}

func within(field string, value, least, most int, hint string) error {
	if value < least || value > most {
		return &Error{Field: field, Problem: fmt.Sprintf("%d is not within %d and %d", value, least, most), Hint: hint}
	}
	return nil
}
