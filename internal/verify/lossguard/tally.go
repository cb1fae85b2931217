// Package lossguard follows agents during a migration: it adds up losses, stops a run beyond its
// budget, proves barriers, and knows clients of old addresses. See docs/design/proof.md.
package lossguard

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
)

// calm is for how long every probe must be answered before losses count: agents begin while nodes
// still learn.
const calm = 3 * time.Second

// Agent is one of the two on a node.
type Agent struct {
	Node   string
	Origin v1alpha1.ProbeOrigin
}

// speaker is one instance of an agent. Two may report in turns during a restart.
type speaker struct {
	Agent
	instance string
}

type agentState struct {
	sequence int64
	// heard is when its sequence last advanced, well without a problem, began when first seen or
	// last excused.
	heard, well, began time.Time
	// armed is true once all its probes were answered for a while; since is when, by its clock.
	armed bool
	since time.Time
	// disquiet names a probe that prevents that; failing says that one failed lately.
	disquiet string
	failing  bool
	problem  string

	measuring measuring
}

// Tally adds up NodeReports from the moment it is made. It reads no clock and makes no request.
type Tally struct {
	// begun is true once agents may arm.
	begun  bool
	agents map[speaker]*agentState
	// latest is the instance of an agent that was first heard of last.
	latest map[Agent]string
	// excused are nodes that nothing is held against.
	excused map[string]bool
	// cordoned has every node there is, and whether it is cordoned; held and left are by node, too.
	cordoned map[string]bool
	held     map[string]*heldLosses
	left     map[string]int64
	counters map[counterKey]counter
	connects map[connectKey]time.Time
	reports  map[string]*v1alpha1.NodeReport
	// strangers are the instances that reported in the name of an agent and are none of its pods.
	strangers map[Agent]string
	// rolled is when the one pod behind agentset.Single was last replaced.
	rolled time.Time

	// Sent, Failed, Late and NotMeasured count what the agents met with since they were armed.
	Sent, Failed, Late, NotMeasured int64
	// Losses are the latest first seen, one for each node and probe.
	Losses []v1alpha1.Loss
	// Lates are the latest late answers by node and probe, the latest last.
	Lates []Late
}

// newTally has counted nothing.
func newTally() *Tally {
	return &Tally{
		agents: map[speaker]*agentState{}, latest: map[Agent]string{}, excused: map[string]bool{},
		counters: map[counterKey]counter{}, connects: map[connectKey]time.Time{}, reports: map[string]*v1alpha1.NodeReport{},
		strangers: map[Agent]string{}, held: map[string]*heldLosses{}, left: map[string]int64{},
	}
}

// Begin has losses count, of each agent from when it is calm. Before, replumb itself may replace
// agents that others call.
func (t *Tally) Begin() { t.begun = true }

func (t *Tally) Forget(node string) {
	delete(t.reports, node)
	maps.DeleteFunc(t.agents, func(k speaker, _ *agentState) bool { return k.Node == node })
	maps.DeleteFunc(t.latest, func(k Agent, _ string) bool { return k.Node == node })
	t.Doubt(node, nil)
}

// Doubt notes foreign instances that reported for agents of a node; nil for none.
func (t *Tally) Doubt(node string, strangers map[Agent]string) {
	maps.DeleteFunc(t.strangers, func(a Agent, _ string) bool { return a.Node == node })
	maps.Copy(t.strangers, strangers)
}

func (t *Tally) strangersOf(node string) []Agent {
	var all []Agent
	for a := range t.strangers {
		if a.Node == node {
			all = append(all, a)
		}
	}
	return all
}

// strange says what is wrong with what a node reports; nothing, if its own pods do.
func (t *Tally) strange(a Agent) string {
	instance, is := t.strangers[a]
	if !is {
		return ""
	}
	return fmt.Sprintf("its report from the network of %ss is by %.60q, which is no pod of replumb there, and does not count",
		strings.ToLower(string(a.Origin)), instance)
}

// Excuse ignores losses on a node, or counts them again once all is well there. An agent that is
// not heard of afterwards does not count again: it may have left, and its last report stays.
func (t *Tally) Excuse(node string, is bool) {
	t.excused[node] = is
	for k, s := range t.agents {
		if k.Node == node && is {
			s.armed, s.began = false, s.heard
		}
	}
}

func (t *Tally) Retain(nodes map[string]bool) {
	for node := range t.reports {
		if !nodes[node] {
			t.Forget(node)
		}
	}
}

// Take adds a report that came at a time of our clock, and returns what is new of losses.
func (t *Tally) Take(r *v1alpha1.NodeReport, at time.Time) []v1alpha1.Loss {
	t.reports[r.Name] = r
	for i := range r.Status.Agents {
		t.observe(r, &r.Status.Agents[i], at)
	}
	var fresh []v1alpha1.Loss
	failed := t.Failed
	for i := range r.Status.Probes {
		if loss := t.count(r.Name, &r.Status.Probes[i]); loss != nil {
			fresh = append(fresh, *loss)
		}
	}
	fresh = append(fresh, t.connected(r)...)
	for i := range r.Status.Agents {
		t.arm(r, &r.Status.Agents[i], at)
	}
	if len(fresh) > 0 && t.cordoned[r.Name] {
		t.hold(r.Name, fresh, failed, at)
		return nil
	}
	for i := range fresh {
		if t.learnsLate(r, &fresh[i], at) {
			fresh[i].Error += "; node " + r.Name + " learns of endpoints late: see to what programs Services there"
		}
		t.remember(fresh[i])
	}
	return fresh
}

func (t *Tally) observe(r *v1alpha1.NodeReport, a *v1alpha1.AgentReport, at time.Time) {
	key := speaker{Agent{r.Name, a.Origin}, a.Instance}
	s := t.agents[key]
	switch {
	case s == nil:
		t.latest[key.Agent] = a.Instance
		s = &agentState{sequence: a.Sequence, heard: at, well: at, began: at, measuring: measuring{able: at}}
		t.agents[key] = s
	case s.sequence != a.Sequence:
		s.sequence, s.heard = a.Sequence, at
		if a.Problem == "" {
			s.well = at
		}
	}
	s.problem, s.failing = a.Problem, false
	if a.ReportedAt.Time.Before(s.since) { // its clock was set back, and says of no loss any more that it is older
		s.since = time.Time{}
	}
}

// arm has losses count from the next report. It takes two: a failure may not be in a window yet.
func (t *Tally) arm(r *v1alpha1.NodeReport, a *v1alpha1.AgentReport, at time.Time) {
	s := t.agents[speaker{Agent{r.Name, a.Origin}, a.Instance}]
	s.measuring.close(at, s.armed)
	if s.armed || !t.begun || t.excused[r.Name] {
		return
	}
	s.disquiet = disquiet(r, a)
	s.armed = s.disquiet == "" && a.Problem == "" && !s.failing && s.heard.After(s.began)
	s.since = a.ReportedAt.Time
}

// disquiet names a probe that failed lately; none, if all were answered.
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
