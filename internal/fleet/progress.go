package fleet

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/printable"
)

// ProgressPrinter prints the events of a fleet for people, each line with the cluster's name in
// front.
type ProgressPrinter struct {
	// Out is for people; Quiet leaves out all but waits and errors.
	Out   io.Writer
	Quiet bool

	mu       sync.Mutex
	clusters map[string]*clusterState
}

type clusterState struct {
	// phase is the last one announced; waiting has the steps whose waits were.
	phase   string
	waiting map[string]bool
}

// operatorLine is printed by a replumb about a migration that an operator runs.
type operatorLine struct {
	Phase  string `json:"phase"`
	Stage  string `json:"stage"`
	Gate   string `json:"gate"`
	Counts struct {
		Total int `json:"total"`
		Moved int `json:"moved"`
	} `json:"counts"`
}

// OnLine prints a line of a cluster's replumb, if it is news.
func (p *ProgressPrinter) OnLine(t *ClusterTarget, l OutputLine) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clusters == nil {
		p.clusters = map[string]*clusterState{}
	}
	if p.clusters[t.Name] == nil {
		p.clusters[t.Name] = &clusterState{waiting: map[string]bool{}}
	}
	if !l.Event {
		p.say(t.Name, l.Text)
		return
	}
	e := engine.Event{}
	if json.Unmarshal([]byte(l.Text), &e) == nil && e.Kind != "" {
		p.event(t.Name, p.clusters[t.Name], e)
		return
	}
	line := operatorLine{}
	if json.Unmarshal([]byte(l.Text), &line) == nil {
		p.operator(t.Name, line)
	}
}

func (p *ProgressPrinter) event(name string, of *clusterState, e engine.Event) {
	switch e.Kind {
	case engine.StepDone:
		if of.phase != e.Phase && !p.Quiet {
			of.phase = e.Phase
			p.say(name, "phase "+e.Phase)
		}
		if e.Note != "" {
			p.say(name, fmt.Sprintf("%s: done, but: %s", e.Message, e.Note))
		}
	case engine.StepWaiting:
		if e.Guide == "" || of.waiting[e.Step] {
			return
		}
		of.waiting[e.Step] = true
		p.say(name, "waits for you: "+e.Message+"\n"+e.Guide)
	case engine.StepFailed:
		p.say(name, e.Message+": "+e.Error)
	case engine.PhaseDone:
		if of.phase == e.Phase && !p.Quiet {
			p.say(name, fmt.Sprintf("phase %s: done (%s)", e.Phase, time.Duration(e.Seconds*float64(time.Second)).Round(time.Second)))
		}
	}
}

func (p *ProgressPrinter) operator(name string, line operatorLine) {
	text := "the operator: " + line.Phase
	if line.Stage != "" {
		text += " (" + line.Stage + ")"
	}
	if line.Counts.Total > 0 {
		text += fmt.Sprintf(", %d of %d moved", line.Counts.Moved, line.Counts.Total)
	}
	switch {
	case line.Gate != "":
		p.say(name, "waits for you: "+line.Gate)
	case !p.Quiet:
		p.say(name, text)
	}
}

// OnEvent prints an event of the fleet itself.
func (p *ProgressPrinter) OnEvent(e Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	took := time.Duration(e.Seconds * float64(time.Second)).Round(time.Second)
	switch e.Kind {
	case ClusterFailed:
		p.say(e.Cluster, fmt.Sprintf("ended with exit code %d", e.ExitCode))
	case WaveStarted:
		p.note("==> wave " + e.Wave)
	case ClusterStarted:
		p.note(e.Cluster + ": begins")
	case ClusterSpared:
		p.note(e.Cluster + ": nothing to do: " + e.Message)
	case ClusterDone:
		p.note(fmt.Sprintf("%s: done (%s)", e.Cluster, took))
	case Soaking:
		p.note(fmt.Sprintf("==> wave %s soaks for %s", e.Wave, e.Message))
	case Healthy:
		p.note("==> wave " + e.Wave + " is healthy")
	}
}

func (p *ProgressPrinter) note(text string) {
	if !p.Quiet {
		fmt.Fprintln(p.Out, printable.Line(text))
	}
}

func (p *ProgressPrinter) say(name, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(printable.Text(text), "\n"), "\n") {
		fmt.Fprintf(p.Out, "%s: %s\n", name, line)
	}
}

// Tagged adds the name of the cluster to a line of JSON. Lines that are no object are dropped.
func Tagged(cluster, line string) (string, bool) {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), "{")
	if !ok || !json.Valid([]byte(line)) {
		return "", false
	}
	name, err := json.Marshal(cluster)
	if err != nil {
		return "", false
	}
	if strings.TrimSpace(rest) == "}" {
		return fmt.Sprintf(`{"cluster":%s}`, name), true
	}
	return fmt.Sprintf(`{"cluster":%s,%s`, name, rest), true
}
