// Package proof follows what the agents on the nodes see while a migration goes on: it adds up requests and losses, stops a run that
// loses more than its budget, tells barriers that were passed, and knows who still uses an old address. See docs/design/proof.md.
package proof

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// calm is for how long every probe of an agent must have been answered before its losses count: agents begin while the nodes still learn
// of what they call, and a run that follows on trouble begins when the trouble is over.
const calm = 3 * time.Second

// agentKey is an agent: one of the two on a node.
type agentKey struct {
	node   string
	origin v1alpha1.ProbeOrigin
}

// agentState is what is known of an agent.
type agentState struct {
	instance string
	sequence int64
	// heard is when its sequence last advanced, by our clock; began when its instance was first seen.
	heard, began time.Time
	// armed is true once its probes were all answered for a while: what fails from then on is a loss.
	armed bool
	// disquiet names a probe that keeps it from that; failing is true if one failed since the report before.
	disquiet string
	failing  bool
	problem  string
}

// counterKey is a probe of a node.
type counterKey struct{ node, probe string }

// counter is how far a probe was counted.
type counter struct {
	instance     string
	sent, failed int64
}

// connectKey is a connection that failed.
type connectKey struct{ node, service, address string }

// Tally adds up NodeReports from the moment it is made. It reads no clock and makes no request.
type Tally struct {
	agents   map[agentKey]*agentState
	counters map[counterKey]*counter
	connects map[connectKey]time.Time
	reports  map[string]*v1alpha1.NodeReport

	// Sent and Failed count what the agents met with since they were armed.
	Sent, Failed int64
	// Losses are the latest first seen, one for each node and probe.
	Losses []v1alpha1.Loss
}

// NewTally has counted nothing.
func NewTally() *Tally {
	return &Tally{
		agents: map[agentKey]*agentState{}, counters: map[counterKey]*counter{}, connects: map[connectKey]time.Time{},
		reports: map[string]*v1alpha1.NodeReport{},
	}
}

// Forget a node whose report is gone.
func (t *Tally) Forget(node string) {
	delete(t.reports, node)
	for k := range t.agents {
		if k.node == node {
			delete(t.agents, k)
		}
	}
}

// Reports are the latest of all nodes, by name.
func (t *Tally) Reports() []v1alpha1.NodeReport {
	all := make([]v1alpha1.NodeReport, 0, len(t.reports))
	for _, r := range t.reports {
		all = append(all, *r)
	}
	slices.SortFunc(all, func(a, b v1alpha1.NodeReport) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// Take adds a report that came at a time of our clock, and returns what is new of losses.
func (t *Tally) Take(r *v1alpha1.NodeReport, at time.Time) []v1alpha1.Loss {
	t.reports[r.Name] = r
	for i := range r.Status.Agents {
		t.hear(r, &r.Status.Agents[i], at)
	}
	var fresh []v1alpha1.Loss
	for i := range r.Status.Probes {
		if loss := t.count(r.Name, &r.Status.Probes[i]); loss != nil {
			fresh = append(fresh, *loss)
		}
	}
	fresh = append(fresh, t.connected(r)...)
	for i := range r.Status.Agents {
		t.arm(r, &r.Status.Agents[i])
	}
	for i := range fresh {
		t.remember(fresh[i])
	}
	return fresh
}

// hear notes that an agent lives.
func (t *Tally) hear(r *v1alpha1.NodeReport, a *v1alpha1.AgentReport, at time.Time) {
	key := agentKey{r.Name, a.Origin}
	s := t.agents[key]
	switch {
	case s == nil || s.instance != a.Instance:
		s = &agentState{instance: a.Instance, sequence: a.Sequence, heard: at, began: at}
		t.agents[key] = s
	case s.sequence != a.Sequence:
		s.sequence, s.heard = a.Sequence, at
	}
	s.problem, s.failing = a.Problem, false
}

// arm has what an agent sees from its next report on count, if all is well with its probes. It takes two reports: only the second
// tells that nothing failed which is in no window yet.
func (t *Tally) arm(r *v1alpha1.NodeReport, a *v1alpha1.AgentReport) {
	s := t.agents[agentKey{r.Name, a.Origin}]
	if s.armed {
		return
	}
	s.disquiet = disquiet(r, a)
	s.armed = s.disquiet == "" && a.Problem == "" && !s.failing && s.heard.After(s.began)
}

// disquiet names a probe of an agent that has not been answered all the time lately; none, if all have.
func disquiet(r *v1alpha1.NodeReport, a *v1alpha1.AgentReport) string {
	found := false
	for i := range r.Status.Probes {
		p := &r.Status.Probes[i]
		if p.Origin != a.Origin || p.Instance != a.Instance {
			continue
		}
		found = true
		if steady(p) < calm {
			if n := len(p.Losses); n > 0 {
				return fmt.Sprintf("%s (%s)", p.Name, p.Losses[n-1].Error)
			}
			return p.Name
		}
	}
	if !found {
		return "no probe yet"
	}
	return ""
}

// steady is for how long a probe has been answered without a failure, up to its latest report.
func steady(p *v1alpha1.ProbeReport) time.Duration {
	var seconds int64
	for _, w := range slices.Backward(p.Recent) {
		if w.Failed > 0 || w.Sent == 0 {
			break
		}
		seconds += w.End - w.Start
	}
	return time.Duration(seconds) * time.Second
}

// count adds what is new of a probe, and returns its latest loss if that is new.
func (t *Tally) count(node string, p *v1alpha1.ProbeReport) *v1alpha1.Loss {
	key := counterKey{node, p.Name}
	c := t.counters[key]
	a := t.agents[agentKey{node, p.Origin}]
	armed := a != nil && a.armed && a.instance == p.Instance
	switch {
	case c == nil || c.instance != p.Instance:
		c = &counter{instance: p.Instance}
		t.counters[key] = c
		if a == nil || a.began.Equal(a.heard) { // it counted before we came
			c.sent, c.failed = p.Sent, p.Failed
		}
	case !armed:
		if a != nil && p.Failed > c.failed {
			a.failing = true
		}
		c.sent, c.failed = p.Sent, p.Failed
	}
	sent, failed := p.Sent-c.sent, p.Failed-c.failed
	c.sent, c.failed = p.Sent, p.Failed
	if !armed {
		return nil
	}
	t.Sent += max(0, sent)
	if failed <= 0 {
		return nil
	}
	t.Failed += failed
	loss := &v1alpha1.Loss{Node: node, Probe: p.Name, Address: p.Address}
	loss.LossWindow = v1alpha1.LossWindow{Failed: int(failed), Error: "unknown"}
	if n := len(p.Losses); n > 0 {
		loss.LossWindow = p.Losses[n-1]
	}
	return loss
}

// connected adds connections to moved Services that failed.
func (t *Tally) connected(r *v1alpha1.NodeReport) []v1alpha1.Loss {
	a := t.agents[agentKey{r.Name, v1alpha1.FromHost}]
	if r.Status.Connects == nil || a == nil || r.Status.Connects.Instance != a.instance {
		return nil
	}
	var fresh []v1alpha1.Loss
	for i := range r.Status.Connects.Failed {
		f := &r.Status.Connects.Failed[i]
		key := connectKey{r.Name, f.Service, f.Address}
		if known, ok := t.connects[key]; ok && known.Equal(f.At.Time) {
			continue
		}
		t.connects[key] = f.At.Time
		if !a.armed {
			continue
		}
		t.Failed++
		fresh = append(fresh, v1alpha1.Loss{
			Node: r.Name, Probe: f.Service, Address: f.Address,
			LossWindow: v1alpha1.LossWindow{Start: f.At, End: f.At, Failed: 1, Error: f.Error},
		})
	}
	return fresh
}

// maxLosses is how many losses are kept (v1alpha1.ProofStatus).
const maxLosses = 32

// remember a loss, in the place of an earlier one of its window.
func (t *Tally) remember(l v1alpha1.Loss) {
	same := func(o v1alpha1.Loss) bool {
		return o.Node == l.Node && o.Probe == l.Probe && o.Address == l.Address && o.Start.Equal(&l.Start)
	}
	t.Losses = append(slices.DeleteFunc(t.Losses, same), l)
	if n := len(t.Losses); n > maxLosses {
		t.Losses = t.Losses[n-maxLosses:]
	}
}

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

// Silence is for how long an agent on a node has not been heard of: the longer one of the two. A node that was never heard of
// counts from since.
func (t *Tally) Silence(node string, since, now time.Time) time.Duration {
	var longest time.Duration
	for _, origin := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		heard := since
		if s := t.agents[agentKey{node, origin}]; s != nil && s.heard.After(heard) {
			heard = s.heard
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
