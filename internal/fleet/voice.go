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

// Voice tells people what happens in a fleet: a line with the cluster's name in front for phases that begin to do something and end, for
// what waits, and for what goes wrong.
type Voice struct {
	// Out is for people; quiet leaves progress out.
	Out   io.Writer
	Quiet bool

	mu sync.Mutex
	of map[string]*part
}

// part is what was said of one cluster.
type part struct {
	// phase is the one that was announced, waiting the steps whose waiting was.
	phase   string
	waiting map[string]bool
}

// progress is a line that a replumb prints about a migration that an operator runs.
type progress struct {
	Phase  string `json:"phase"`
	Stage  string `json:"stage"`
	Gate   string `json:"gate"`
	Counts struct {
		Total int `json:"total"`
		Moved int `json:"moved"`
	} `json:"counts"`
}

// Hear takes a line of a cluster's replumb.
func (v *Voice) Hear(t *Target, l Line) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.of == nil {
		v.of = map[string]*part{}
	}
	if v.of[t.Name] == nil {
		v.of[t.Name] = &part{waiting: map[string]bool{}}
	}
	if !l.Event {
		v.say(t.Name, l.Text)
		return
	}
	e := engine.Event{}
	if json.Unmarshal([]byte(l.Text), &e) == nil && e.Kind != "" {
		v.event(t.Name, v.of[t.Name], e)
		return
	}
	p := progress{}
	if json.Unmarshal([]byte(l.Text), &p) == nil {
		v.progress(t.Name, p)
	}
}

func (v *Voice) event(name string, p *part, e engine.Event) {
	switch e.Kind {
	case engine.StepDone:
		if p.phase != e.Phase && !v.Quiet {
			p.phase = e.Phase
			v.say(name, "phase "+e.Phase)
		}
		if e.Note != "" {
			v.say(name, fmt.Sprintf("%s: done, but: %s", e.Message, e.Note))
		}
	case engine.StepWaiting:
		if e.Guide == "" || p.waiting[e.Step] {
			return
		}
		p.waiting[e.Step] = true
		v.say(name, "waits for you: "+e.Message+"\n"+e.Guide)
	case engine.StepFailed:
		v.say(name, e.Message+": "+e.Error)
	case engine.PhaseDone:
		if p.phase == e.Phase && !v.Quiet {
			v.say(name, fmt.Sprintf("phase %s: done (%s)", e.Phase, time.Duration(e.Seconds*float64(time.Second)).Round(time.Second)))
		}
	}
}

func (v *Voice) progress(name string, p progress) {
	text := "the operator: " + p.Phase
	if p.Stage != "" {
		text += " (" + p.Stage + ")"
	}
	if p.Counts.Total > 0 {
		text += fmt.Sprintf(", %d of %d moved", p.Counts.Moved, p.Counts.Total)
	}
	switch {
	case p.Gate != "":
		v.say(name, "waits for you: "+p.Gate)
	case !v.Quiet:
		v.say(name, text)
	}
}

// Tell takes what happens beside that.
func (v *Voice) Tell(e Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	took := time.Duration(e.Seconds * float64(time.Second)).Round(time.Second)
	switch e.Kind {
	case ClusterFailed:
		v.say(e.Cluster, fmt.Sprintf("ended with exit code %d", e.ExitCode))
	case WaveStarted:
		v.note("==> wave " + e.Wave)
	case ClusterStarted:
		v.note(e.Cluster + ": begins")
	case ClusterSpared:
		v.note(e.Cluster + ": nothing to do: " + e.Message)
	case ClusterDone:
		v.note(fmt.Sprintf("%s: done (%s)", e.Cluster, took))
	case Soaking:
		v.note(fmt.Sprintf("==> wave %s soaks for %s", e.Wave, e.Message))
	case Healthy:
		v.note("==> wave " + e.Wave + " is healthy")
	}
}

// note is what quiet leaves out.
func (v *Voice) note(text string) {
	if !v.Quiet {
		fmt.Fprintln(v.Out, printable.Line(text))
	}
}

// say has the name of the cluster before each line.
func (v *Voice) say(name, text string) {
	for line := range strings.SplitSeq(strings.TrimRight(printable.Text(text), "\n"), "\n") {
		fmt.Fprintf(v.Out, "%s: %s\n", name, line)
	}
}

// Tagged is a line of JSON with the name of the cluster in it. What is no object is dropped.
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
