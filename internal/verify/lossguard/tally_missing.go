package lossguard

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Unarmed names those of the agents whose losses do not count yet, and why.
func (t *Tally) Unarmed(agents []Agent) []string {
	var all []string
	for _, a := range agents {
		s := t.agents[speaker{a, t.latest[a]}]
		strange := t.strange(a)
		switch {
		case s == nil && strange != "":
			all = append(all, "node "+a.Node+": "+strange)
		case s == nil:
			all = append(all, fmt.Sprintf("node %s has not reported from the network of %ss", a.Node, strings.ToLower(string(a.Origin))))
		case s.problem != "":
			all = append(all, fmt.Sprintf("node %s: %s", a.Node, s.problem))
		case !s.measuring.well():
			all = append(all, t.Unmeasuring([]Agent{a})...)
		case !s.armed && !s.heard.After(s.began):
			all = append(all, fmt.Sprintf("node %s is to report again from the network of %ss", a.Node, strings.ToLower(string(a.Origin))))
		case !s.armed && s.disquiet == "":
			all = append(all, fmt.Sprintf("node %s has just begun to probe", a.Node))
		case !s.armed:
			all = append(all, fmt.Sprintf("node %s: %s is not answered steadily", a.Node, s.disquiet))
		}
	}
	return all
}

// Unheard names agents that have not reported well since a time.
func (t *Tally) Unheard(since time.Time, agents []Agent) []string {
	var all []string
	for _, a := range agents {
		heard := false
		for k, s := range t.agents {
			heard = heard || k.Agent == a && s.well.After(since) && s.measuring.able.After(since)
		}
		if !heard {
			all = append(all, fmt.Sprintf("node %s is to report from the network of %ss", a.Node, strings.ToLower(string(a.Origin))))
		}
	}
	return all
}

// Silence is for how long an agent has not reported well, at least since a time.
func (t *Tally) Silence(a Agent, since, now time.Time) time.Duration {
	for k, s := range t.agents {
		if k.Agent == a && s.well.After(since) {
			since = s.well
		}
	}
	return now.Sub(since)
}

func (t *Tally) Behind(sentinel string, nodes []string) []string {
	var missing []string
	for _, node := range nodes {
		r := t.reports[node]
		if r == nil || !slices.ContainsFunc(r.Status.Barriers, func(b v1alpha1.BarrierReport) bool { return b.Sentinel == sentinel }) {
			missing = append(missing, node)
		}
	}
	return missing
}

func (t *Tally) Unconnected(want int, nodes []string) []string {
	var missing []string
	for _, node := range nodes {
		r := t.reports[node]
		if r == nil || r.Status.Connects == nil || r.Status.Connects.Instance != t.latest[Agent{node, v1alpha1.FromHost}] ||
			r.Status.Connects.Connected < want {
			missing = append(missing, node)
		}
	}
	return missing
}

// Calling names nodes whose probes still call one of the addresses.
func (t *Tally) Calling(addresses map[string]bool, nodes []string) []string {
	var still []string
	for _, node := range nodes {
		r := t.reports[node]
		if r == nil {
			continue
		}
		if slices.ContainsFunc(r.Status.Probes, func(p v1alpha1.ProbeReport) bool { return addresses[host(p.Address)] }) {
			still = append(still, node)
		}
	}
	return still
}

func host(address string) string {
	if u, err := url.Parse(address); err == nil && u.Host != "" {
		return u.Hostname()
	}
	if i := strings.LastIndexByte(address, ':'); i >= 0 {
		return strings.Trim(address[:i], "[]")
	}
	return address
}
