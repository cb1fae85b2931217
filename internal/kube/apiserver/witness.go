package apiserver

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/lists"
)

// Bounds of a report.
const (
	mostReported   = 32
	mostSANs       = 64
	mostRanges     = 2
	longestProblem = 256
)

// LookEvery is how many reports an agent makes between looks at API servers.
const LookEvery = 3

// Report is what an agent reports of API servers that it has looked at.
func Report(servers []APIServer, now time.Time) []v1alpha1.APIServerReport {
	var all []v1alpha1.APIServerReport
	for _, s := range servers[:min(len(servers), mostReported)] {
		r := v1alpha1.APIServerReport{
			Address: s.Address, SANs: lists.Strings(s.SANs[:min(len(s.SANs), mostSANs)]), Ranges: lists.Strings(s.Ranges[:min(len(s.Ranges), mostRanges)]),
			SeenAt: metav1.NewMicroTime(now), Problem: shortText(s.CertErr), RangesProblem: shortText(s.FlagsErr),
		}
		all = append(all, r)
	}
	return all
}

func shortText(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), longestProblem)], "")
}

// ObservingNode is a node whose agent looks at API servers.
type ObservingNode struct {
	Node string
	// ControlPlane is the node's label, which NodeRestriction keeps kubelets from setting.
	ControlPlane bool
	// Silent is why nothing that was reported of the node counts; empty, if it does.
	Silent string
	// Saw is what its agent has seen lately.
	Saw []v1alpha1.APIServerReport
}

func (w *ObservingNode) saw(address string) v1alpha1.APIServerReport {
	at := slices.IndexFunc(w.Saw, func(r v1alpha1.APIServerReport) bool { return r.Address == address })
	switch {
	case w.Silent != "":
		return v1alpha1.APIServerReport{Problem: w.Silent, RangesProblem: w.Silent}
	case at < 0:
		const not = "it has not looked at this API server lately"
		return v1alpha1.APIServerReport{Problem: not, RangesProblem: not}
	}
	return w.Saw[at]
}

// Through fills in what only nodes have seen of servers.
//
// A lie about a certificate would cost every pod the API. Nodes of the control plane hold the keys
// of API servers anyhow, so where they agree, they alone are believed; without them all nodes have
// to agree, so that one honest node is enough. A kubeconfig that verifies no certificates stays as
// it is.
func Through(servers []APIServer, witnesses []ObservingNode) []APIServer {
	filled := slices.Clone(servers)
	believed := slices.DeleteFunc(slices.Clone(witnesses), func(w ObservingNode) bool { return !w.ControlPlane })
	if len(believed) == 0 {
		believed = slices.Clone(witnesses)
	}
	if len(believed) == 0 {
		return filled
	}
	slices.SortFunc(believed, func(a, b ObservingNode) int { return cmp.Compare(a.Node, b.Node) })
	for i := range filled {
		if s := &filled[i]; !errors.Is(s.CertErr, ErrUnverified) {
			s.fill(believed)
		}
	}
	return filled
}

func (s *APIServer) fill(witnesses []ObservingNode) {
	said := testimony(s.Address, witnesses)
	used := false
	if s.CertErr != nil {
		if used = said.certErr == nil; used {
			s.SANs, s.CertErr = said.sans, nil
		} else {
			s.CertErr = fmt.Errorf("%w; %w", s.CertErr, said.certErr)
		}
	}
	if s.FlagsErr != nil {
		if said.flagsErr == nil {
			s.Ranges, s.FlagsErr, used = said.ranges, nil, true
		} else {
			s.FlagsErr = fmt.Errorf("%w; %w", s.FlagsErr, said.flagsErr)
		}
	}
	if used {
		s.From = said.from
	}
}

// said is what all witnesses agree on about one server.
type said struct {
	from              string
	sans              []netip.Addr
	ranges            []netip.Prefix
	certErr, flagsErr error
}

func testimony(address string, witnesses []ObservingNode) said {
	const some = 3
	var all said
	var names []string
	for i := range witnesses {
		w := &witnesses[i]
		names = append(names, w.Node)
		all.hear(w.Node, w.saw(address), i == 0)
	}
	all.from = "node " + strings.Join(names[:min(len(names), some)], ", node ")
	if more := len(names) - some; more > 0 {
		all.from += fmt.Sprintf(" and %d more", more)
	}
	return all
}

func (s *said) hear(node string, r v1alpha1.APIServerReport, first bool) {
	if r.Problem != "" && s.certErr == nil {
		s.certErr = fmt.Errorf("node %s: %s", node, r.Problem)
	}
	if r.RangesProblem != "" && s.flagsErr == nil {
		s.flagsErr = fmt.Errorf("node %s: %s", node, r.RangesProblem)
	}
	sans, ranges := parsed(r)
	if first {
		s.sans, s.ranges = sans, ranges
		return
	}
	s.sans = slices.DeleteFunc(s.sans, func(a netip.Addr) bool { return !slices.Contains(sans, a) })
	if !slices.Equal(s.ranges, ranges) && s.flagsErr == nil {
		s.flagsErr = fmt.Errorf("node %s has seen another range than others", node)
	}
}

func parsed(r v1alpha1.APIServerReport) (sans []netip.Addr, ranges []netip.Prefix) {
	for _, text := range r.SANs {
		if a, err := netip.ParseAddr(text); err == nil {
			sans = append(sans, a.Unmap())
		}
	}
	for _, text := range r.Ranges {
		if p, err := netip.ParsePrefix(text); err == nil {
			ranges = append(ranges, p.Masked())
		}
	}
	return sans, ranges
}
