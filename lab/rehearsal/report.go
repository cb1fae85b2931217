package rehearsal

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/offline"
	"github.com/replumb/replumb/lab/sample"
)

// Outcome is what a rehearsal came to.
type Outcome string

// The outcomes.
const (
	// Done says that every command came to its end.
	Done Outcome = "Done"
	// Blocked says that a check refused to let it begin, or go on.
	Blocked Outcome = "Blocked"
	// Failed says that it ended with an error.
	Failed Outcome = "Failed"
	// Open says that it waits at a gate that the rehearsal cannot answer.
	Open Outcome = "Open"
)

// Report is what a rehearsal tells.
type Report struct {
	Kind      string       `json:"kind"`
	Outcome   Outcome      `json:"outcome"`
	Migration string       `json:"migration"`
	Snapshot  offline.Head `json:"snapshot"`
	// Kubernetes is the version that it was rehearsed on.
	Kubernetes string  `json:"kubernetes"`
	Seconds    float64 `json:"seconds"`
	Objects    Objects `json:"objects"`
	Services   Fates   `json:"services"`
	// Commands are those that were rehearsed, in this order.
	Commands []*Command `json:"commands"`
	// Packets is what became of a sample of the Services in a lab, if one was asked for.
	Packets *sample.Result `json:"packets,omitempty"`
	// Restarts are the steps by which apply would renew what carries old addresses, as the plan of the snapshot has them.
	Restarts []string `json:"restarts"`
	// Risks are the findings of the snapshot that did not pass, Only those that the cluster of the rehearsal has beside them.
	Risks findings.Findings `json:"risks"`
	Only  findings.Findings `json:"only"`
	// Errors are what went wrong, in the words of replumb.
	Errors []string `json:"errors"`
	// WaitsLeftOut is how long the Migration would have waited after batches and tiers.
	WaitsLeftOut float64 `json:"waitsLeftOutSeconds"`
	// Played says what was not real, LeftOut what of the Migration was not done, and NotProven what no rehearsal without nodes tells.
	Played    []string `json:"played"`
	LeftOut   []string `json:"leftOut"`
	NotProven []string `json:"notProven"`
}

// Objects are those of the snapshot.
type Objects struct {
	Made    int     `json:"made"`
	Seconds float64 `json:"seconds"`
	// Skipped counts those that are of no use in a rehearsal, by the reason.
	Skipped map[string]int `json:"skipped,omitempty"`
	// NotRead are the resources that the snapshot has nothing of, for lack of rights.
	NotRead []string `json:"notRead,omitempty"`
	// Lacking is how many could not be made, Refused the first of them.
	Lacking int       `json:"lacking"`
	Refused []Refused `json:"refused,omitempty"`
}

// Fates are what becomes of Services, by the plan of the snapshot.
type Fates struct {
	Move   int `json:"move"`
	Stay   int `json:"stay"`
	AtRisk int `json:"atRisk"`
}

// Command is one of replumb, from its beginning to its end.
type Command struct {
	// Command is apply, rollback or finish.
	Command string  `json:"command"`
	Seconds float64 `json:"seconds"`
	Phases  []Phase `json:"phases"`
	Gates   []Gate  `json:"gates"`
	// Again is why it was run again: the one API server of the rehearsal restarted at a gate.
	Again []string `json:"again,omitempty"`
}

// Phase is one that a command went through.
type Phase struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	// Done are the steps that changed something, Unchanged those that had nothing to do, Retried how often one was tried again.
	Done      int `json:"done"`
	Unchanged int `json:"unchanged"`
	Retried   int `json:"retried"`
}

// Gate is one that a command waits at for people.
type Gate struct {
	Step  string `json:"step"`
	Title string `json:"title"`
	// Answer is what the rehearsal did.
	Answer string `json:"answer"`
	// Passed reports whether the command went on, Seconds how long it stood there.
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
}

func played() []string {
	return []string{
		"kubelets: nodes and pods have the status that they had, and name cluster DNS as they did, until the gate for it",
		"kube-proxies: each said at once that it knows what a barrier asks for",
		"the controllers of ServiceCIDRs, namespaces and EndpointSlices; no other controller ran",
		"admission of Services without node ports, EndpointSlices, pods, Deployments, ReplicaSets, ConfigMaps and Secrets:" +
			" they were written into etcd as they were",
		"webhooks and aggregated APIs: none was called",
		"one API server, whose certificate had the new address from the beginning",
	}
}

// notProven is what a rehearsal does not tell, with packets in a lab or without.
func notProven(packets bool) []string {
	lost := "whether a request is lost: no packet was sent"
	if packets {
		lost = "whether a request is lost in this cluster: packets were sent in a lab, to a sample of its Services"
	}
	return []string{
		lost,
		"whether kube-proxies and CNIs of this cluster answer on both addresses, and how fast",
		"what webhooks, mutating ones above all, do to replumb's objects",
		"how long restarts take, and people at gates",
	}
}

// hear takes an event into account.
func (c *Command) hear(e engine.Event) {
	if e.Phase == "" {
		return
	}
	at := slices.IndexFunc(c.Phases, func(p Phase) bool { return p.Name == e.Phase })
	if at < 0 {
		c.Phases = append(c.Phases, Phase{Name: e.Phase})
		at = len(c.Phases) - 1
	}
	p := &c.Phases[at]
	switch e.Kind {
	case engine.StepDone:
		p.Done++
	case engine.StepUnchanged:
		p.Unchanged++
	case engine.StepRetried:
		p.Retried++
	case engine.PhaseDone:
		p.Seconds += e.Seconds
	}
	if e.Kind == engine.StepDone || e.Kind == engine.StepUnchanged {
		if g := slices.IndexFunc(c.Gates, func(g Gate) bool { return g.Step == e.Step }); g >= 0 {
			c.Gates[g].Passed = true
			c.Gates[g].Seconds += e.Seconds
		} else if e.Role == engine.RoleGate {
			c.Gates = append(c.Gates, Gate{Step: e.Step, Title: e.Message, Answer: "it held from the beginning", Passed: true})
		}
	}
}

// beside are the findings that another look does not have.
func beside(all, other findings.Findings) findings.Findings {
	type key struct{ code, object string }
	has := map[key]bool{}
	for _, f := range other {
		has[key{f.Code, f.Object}] = true
	}
	return slices.DeleteFunc(all.Open(), func(f findings.Finding) bool { return has[key{f.Code, f.Object}] })
}

// JSON writes the report as a document.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Text writes the report for people.
func (r *Report) Text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(t, format, args...) } // Flush tells
	p("rehearsal of %s: %s\n", r.Migration, r.Outcome)
	p("snapshot of %s, taken at %s, Kubernetes %s; rehearsed on %s in %s\n", r.Snapshot.Server, r.Snapshot.Time.Format(time.RFC3339),
		r.Snapshot.Kubernetes, r.Kubernetes, seconds(r.Seconds))
	p("\nOBJECTS\t\n  made\t%d, in %s\n", r.Objects.Made, seconds(r.Objects.Seconds))
	for _, why := range slices.Sorted(maps.Keys(r.Objects.Skipped)) {
		p("  left out\t%d: %s\n", r.Objects.Skipped[why], why)
	}
	if len(r.Objects.NotRead) > 0 {
		p("  not in the snapshot\t%s\n", strings.Join(r.Objects.NotRead, ", "))
	}
	if r.Objects.Lacking > 0 {
		p("  not made\t%d\n", r.Objects.Lacking)
	}
	for _, refused := range r.Objects.Refused {
		p("    %s\t%s\n", refused.Object, line(refused.Error))
	}
	p("\nSERVICES\t\n  move\t%d\n  stay\t%d\n  at risk\t%d\n", r.Services.Move, r.Services.Stay, r.Services.AtRisk)
	for _, c := range r.Commands {
		c.text(p)
	}
	r.packets(p)
	if r.WaitsLeftOut > 0 {
		p("\nwaits after batches and tiers, left out\t%s\n", seconds(r.WaitsLeftOut))
	}
	list(p, fmt.Sprintf("RESTARTS PLANNED: %d", len(r.Restarts)), r.Restarts)
	list(p, "RISKS, by the snapshot", texts(r.Risks))
	list(p, "FINDINGS of the rehearsal alone", texts(r.Only))
	list(p, "ERRORS", r.Errors)
	list(p, "PLAYED", r.Played)
	list(p, "LEFT OUT of the Migration", r.LeftOut)
	list(p, "NOT PROVEN", r.NotProven)
	return t.Flush()
}

// packets writes what became of the sample, for people.
func (r *Report) packets(p func(string, ...any)) {
	if r.Packets == nil {
		return
	}
	p("\nPACKETS, in a lab of %d nodes, in %s\n  SERVICE\tSHAPE\n", r.Packets.Nodes, seconds(r.Packets.Seconds))
	for _, s := range r.Packets.Services {
		p("  %s\t%s\n", s.Service, s.Shape)
	}
	for _, why := range slices.Sorted(maps.Keys(r.Packets.LeftOut)) {
		p("  %d cannot be in a sample\t%s\n", r.Packets.LeftOut[why], why)
	}
	p("\n  COMMAND\tREQUESTS\tLOST\n")
	for _, c := range r.Packets.Commands {
		p("  %s\t%d\t%d\n", c.Command, c.Sent, c.Lost)
	}
	list(p, "  LOST", r.Packets.Losses)
}

// text writes what a command did, for people.
func (c *Command) text(p func(string, ...any)) {
	p("\n%s, in %s\n", strings.ToUpper(c.Command), seconds(c.Seconds))
	if len(c.Phases) > 0 {
		p("  PHASE\tTOOK\tSTEPS\tUNCHANGED\tRETRIED\n")
	}
	for _, phase := range c.Phases {
		p("  %s\t%s\t%d\t%d\t%d\n", phase.Name, seconds(phase.Seconds), phase.Done, phase.Unchanged, phase.Retried)
	}
	if len(c.Gates) > 0 {
		p("\n  GATE\tPASSED\tSTOOD\tANSWER\n")
	}
	for _, g := range c.Gates {
		passed := "no"
		if g.Passed {
			passed = "yes"
		}
		p("  %s\t%s\t%s\t%s\n", g.Step, passed, seconds(g.Seconds), g.Answer)
	}
	list(p, "  RUN AGAIN, after the API server of the rehearsal restarted", c.Again)
}

// shown bounds the lists of the text; JSON has all.
const shown = 20

func list(p func(string, ...any), heading string, lines []string) {
	if len(lines) == 0 {
		return
	}
	p("\n%s\n", heading)
	for _, l := range lines[:min(shown, len(lines))] {
		p("  %s\n", line(l))
	}
	if more := len(lines) - shown; more > 0 {
		p("  … and %d more (-o json has all)\n", more)
	}
}

func texts(all findings.Findings) []string {
	var out []string
	for _, f := range all {
		text := f.Message
		if text == "" {
			text = f.Claim
		}
		out = append(out, fmt.Sprintf("%s %s %s: %s", f.Code, f.Severity, f.Outcome, text))
	}
	return out
}

// line is a text in one line of a table.
func line(text string) string {
	return strings.NewReplacer("\n", "; ", "\t", " ").Replace(strings.TrimSpace(text))
}

func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < 10*time.Second {
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
