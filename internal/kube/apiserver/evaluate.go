package apiserver

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/lists"
)

const noServer = "no API server is known"

// CertificatesCover returns an engine.NotYet that lists servers whose certificate does not name
// want, or is not known.
func CertificatesCover(servers []APIServer, want netip.Addr) error {
	if len(servers) == 0 {
		return engine.NotYet(noServer)
	}
	var lacking, unknown []string
	for _, s := range servers {
		switch {
		case s.CertErr != nil:
			unknown = append(unknown, s.CertErr.Error())
		case !slices.Contains(s.SANs, want.Unmap()):
			lacking = append(lacking, s.Address)
		}
	}
	var texts []string
	if len(lacking) > 0 {
		texts = append(texts, fmt.Sprintf("%s is not in the certificate of %s", want, strings.Join(lacking, ", ")))
	}
	if len(unknown) > 0 {
		texts = append(texts, "not known: "+strings.Join(unknown, "; "))
	}
	if len(texts) == 0 {
		return nil
	}
	return engine.NotYet("%s", strings.Join(texts, "; "))
}

// AllOnRange lists the servers with other ranges than want, and those not known, with reasons. A
// single range is compared with that of its family, two with both in order, the primary family
// first.
//
// A server's own answer comes first, then podFlags (see FromPods), then reports of nodes. An API
// server pod at none of the addresses counts as well, since it brings its range along when it
// returns.
func AllOnRange(servers []APIServer, podFlags map[netip.Addr][]netip.Prefix, want []netip.Prefix) (missing, unknown []string) {
	if len(servers) == 0 {
		unknown = append(unknown, noServer)
	}
	seen := map[netip.Addr]bool{}
	judge := func(name string, ranges []netip.Prefix, reason string) {
		switch on, known := onRange(ranges, want); {
		case !known:
			unknown = append(unknown, fmt.Sprintf("%s (%s)", name, reason))
		case !on:
			missing = append(missing, fmt.Sprintf("%s (%s)", name, lists.Join(ranges, ",")))
		}
	}
	for _, s := range servers {
		host := hostOf(s.Address)
		seen[host] = true
		ranges, reason := s.Ranges, "it names no range of this family"
		switch inPod := podFlags[host]; {
		case s.FlagsErr != nil:
			ranges, reason = inPod, s.FlagsErr.Error()
		case s.From != "" && len(inPod) > 0: // what a node says comes last
			ranges = inPod
		}
		judge(s.Address, ranges, reason)
	}
	for _, host := range slices.SortedFunc(maps.Keys(podFlags), netip.Addr.Compare) {
		if !seen[host] {
			judge("the API server pod on "+host.String(), podFlags[host], "it is not ready, or does not tell its range")
		}
	}
	return missing, unknown
}

func onRange(ranges, want []netip.Prefix) (on, known bool) {
	if len(want) != 1 {
		return slices.Equal(ranges, want), len(ranges) > 0
	}
	for _, r := range ranges {
		if r.Addr().Is4() == want[0].Addr().Is4() {
			return r == want[0].Masked(), true
		}
	}
	return false, false
}

func hostOf(address string) netip.Addr {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return netip.Addr{}
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}
	}
	return a.Unmap()
}
