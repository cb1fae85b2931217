package proof

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Unsettled names, for the nodes given, the agents whose losses do not count yet, and why.
func (t *Tally) Unsettled(nodes []string) []string {
	var all []string
	for _, node := range nodes {
		for _, origin := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
			s := t.agents[agentKey{node, origin}]
			switch {
			case s == nil:
				all = append(all, fmt.Sprintf("node %s has not reported from the network of %ss", node, strings.ToLower(string(origin))))
			case s.problem != "":
				all = append(all, fmt.Sprintf("node %s: %s", node, s.problem))
			case !s.armed && s.disquiet == "":
				all = append(all, fmt.Sprintf("node %s has just begun to probe", node))
			case !s.armed:
				all = append(all, fmt.Sprintf("node %s: %s is not answered steadily", node, s.disquiet))
			}
		}
	}
	return all
}

// Silence is for how long an agent on a node has not been heard of, or has said that it cannot see what it should, which is as good as
// silence: the longer one of the two. A node that was never heard of counts from since.
func (t *Tally) Silence(node string, since, now time.Time) time.Duration {
	var longest time.Duration
	for _, origin := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		heard := since
		if s := t.agents[agentKey{node, origin}]; s != nil && s.well.After(heard) {
			heard = s.well
		}
		longest = max(longest, now.Sub(heard))
	}
	return longest
}

// Behind names those of the nodes whose agent has not passed a barrier.
func (t *Tally) Behind(sentinel string, nodes []string) []string {
	var missing []string
	for _, node := range nodes {
		r := t.reports[node]
		if r == nil || r.Status.Barrier == nil || r.Status.Barrier.Sentinel != sentinel {
			missing = append(missing, node)
		}
	}
	return missing
}

// Unconnected names those of the nodes that have not connected to as many moved Services.
func (t *Tally) Unconnected(want int, nodes []string) []string {
	var missing []string
	for _, node := range nodes {
		r, a := t.reports[node], t.agents[agentKey{node, v1alpha1.FromHost}]
		if r == nil || a == nil || r.Status.Connects == nil || r.Status.Connects.Instance != a.instance ||
			r.Status.Connects.Connected < want {
			missing = append(missing, node)
		}
	}
	return missing
}

// Calling names those of the nodes with a probe that still calls one of the addresses, which are without port.
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
