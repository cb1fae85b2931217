package agentset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/kube/inventory"
	"github.com/replumb/replumb/internal/kube/workload"
)

// maxSkew is how far the clock of a node may be off before it is reported.
const maxSkew = 2 * time.Second

// View is what there is to see of agents at one time.
type View struct {
	// From and Until are when the reading began and ended, by the clock of this process.
	From, Until time.Time
	Nodes       []corev1.Node
	Pods        []corev1.Pod
	Reports     []v1alpha1.NodeReport
	// Sets are the DaemonSets by name, by the annotation of their template; one that does not exist
	// is not in it.
	Sets map[string]string
	// News is what was last heard of DaemonSets and pods, by name, if a pod is missing or does not
	// start.
	News map[string]string
}

// Silent is an agent that should report and does not.
type Silent struct {
	Node   string
	Origin v1alpha1.ProbeOrigin
	// Cause in one word, and Reason for people. Neither tells of time.
	Cause  workload.Cause
	Reason string
}

func (s Silent) String() string { return fmt.Sprintf("node %s: %s", s.Node, s.Reason) }

// Skew is a clock that is off.
type Skew struct {
	Node string
	// By at least so much it is ahead of this process's; negative: behind.
	By time.Duration
}

func (s Skew) String() string {
	if s.By < 0 {
		return fmt.Sprintf("the clock of node %s is more than %s behind", s.Node, (-s.By).Round(time.Second))
	}
	return fmt.Sprintf("the clock of node %s is more than %s ahead", s.Node, s.By.Round(time.Second))
}

// Outlook is what was found out by a look. All lists are in the order of names.
type Outlook struct {
	// Reporting are nodes both of whose agents report, and have nothing to complain of.
	Reporting []string
	// Missing are agents of other ready nodes, among them those that have just started.
	Missing []Silent
	// NotReady are nodes that are not waited for, Foreign those on which agents cannot run.
	NotReady, Foreign []string
	Skewed            []Skew
}

// Note names what is not waited for and clocks that are off; empty if nothing is.
func (o Outlook) Note() string {
	var notes []string
	if len(o.NotReady) > 0 {
		notes = append(notes, "not ready and not waited for: "+firstNames(o.NotReady))
	}
	if len(o.Foreign) > 0 {
		notes = append(notes, "no agent can run on "+firstNames(o.Foreign))
	}
	for i, s := range o.Skewed {
		if i == most {
			notes = append(notes, fmt.Sprintf("and %d more clocks are off", len(o.Skewed)-most))
			break
		}
		notes = append(notes, s.String())
	}
	return strings.Join(notes, "; ")
}

const most = 5

func firstNames(all []string) string {
	if len(all) <= most {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

// ReportMemory knows which agents have reported, and when by the clock of this process: a report
// counts if it was not there at the look before.
type ReportMemory struct {
	mu     sync.Mutex
	agents map[agentKey]*agent
	// before is when the look before began.
	before time.Time
}

type agentKey struct {
	node   string
	origin v1alpha1.ProbeOrigin
}

type reportKey struct {
	instance string
	sequence int64
}

type agent struct {
	last reportKey
	// speaks is the instance that was heard last. A report from before the
	// first look may be of an earlier run.
	speaks string
	since  time.Time
	skew   time.Duration
}

// Look takes in a view. wait is for how long an agent may be silent.
func (m *ReportMemory) Look(v View, wait time.Duration) Outlook {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := Outlook{}
	seen, was := newIndex(&v), m.agents
	m.agents = map[agentKey]*agent{}
	for i := range v.Nodes {
		n := &v.Nodes[i]
		switch {
		case kept(n, workload.Foreign()):
			o.Foreign = append(o.Foreign, n.Name)
		case Apart(n) && len(Origins(n)) == 0: // it is leaving
		case !inventory.NodeReady(n): // and forgotten: once it is ready again, its agents have as long as any
			o.NotReady = append(o.NotReady, n.Name)
		default:
			m.node(&o, was, seen, n, wait)
		}
	}
	m.before = v.From
	o.sort()
	return o
}

func (m *ReportMemory) node(o *Outlook, was map[agentKey]*agent, seen *index, n *corev1.Node, wait time.Duration) {
	missing, skew := 0, time.Duration(0)
	name := n.Name
	for _, origin := range Origins(n) {
		k := agentKey{name, origin}
		a, report := was[k], seen.reports[k]
		if a == nil {
			a = &agent{last: reportKeyOf(report), since: seen.view.Until, skew: skewOf(report, time.Time{}, seen.view.Until)}
		} else if w := reportKeyOf(report); w != a.last {
			a.last = w
			a.observe(report, seen.pods[k], m.before, seen.view.Until)
		}
		m.agents[k] = a
		if cause, reason := seen.why(k, a, wait); cause != "" {
			o.Missing = append(o.Missing, Silent{Node: name, Origin: origin, Cause: cause, Reason: reason})
			missing++
		}
		if a.skew.Abs() > skew.Abs() {
			skew = a.skew
		}
	}
	if missing == 0 {
		o.Reporting = append(o.Reporting, name)
	}
	if skew != 0 {
		o.Skewed = append(o.Skewed, Skew{Node: name, By: skew})
	}
}

// observe takes in a report that came after the time before.
func (a *agent) observe(r *v1alpha1.AgentReport, pod *corev1.Pod, before, now time.Time) {
	if r == nil {
		return
	}
	a.speaks = r.Instance
	a.skew = skewOf(r, before, now)
	if pod != nil && r.Instance == string(pod.UID) && r.Problem == "" {
		a.since = now
	}
}

func reportKeyOf(r *v1alpha1.AgentReport) reportKey {
	if r == nil {
		return reportKey{}
	}
	return reportKey{instance: r.Instance, sequence: r.Sequence}
}

// skewOf is by how much the clock of a report is off that came between before and now; zero if
// little, or if it was there already.
func skewOf(r *v1alpha1.AgentReport, before, now time.Time) time.Duration {
	switch {
	case r == nil:
		return 0
	case r.ReportedAt.Sub(now) > maxSkew:
		return r.ReportedAt.Sub(now)
	case !before.IsZero() && before.Sub(r.ReportedAt.Time) > maxSkew:
		return r.ReportedAt.Sub(before)
	}
	return 0
}

func (o *Outlook) sort() {
	for _, names := range [][]string{o.Reporting, o.NotReady, o.Foreign} {
		slices.Sort(names)
	}
	slices.SortFunc(o.Missing, func(a, b Silent) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(string(a.Origin), string(b.Origin)))
	})
	slices.SortFunc(o.Skewed, func(a, b Skew) int { return strings.Compare(a.Node, b.Node) })
}
