package kill

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	kube "github.com/replumb/replumb/internal/kube/cluster"
)

// moment is an event of a run by what it is about, and how many such there were before: the order of steps that run beside
// each other is different in every run.
type moment struct {
	kind        engine.EventKind
	phase, step string
	nth         int
}

func (m moment) String() string {
	text := string(m.kind)
	for _, s := range []string{m.phase, m.step} {
		if s != "" {
			text += " " + s
		}
	}
	if m.nth > 0 {
		text += fmt.Sprintf(" (%d)", m.nth+1)
	}
	return text
}

// waits reports whether it depends on time alone if the event comes at all.
func (m moment) waits() bool { return m.kind == engine.StepWaiting || m.kind == engine.StepRetried }

// counter numbers events that are about the same.
type counter map[moment]int

func (c counter) next(e engine.Event) moment {
	m := moment{kind: e.Kind, phase: e.Phase, step: e.Step}
	if m.kind == engine.StepUnchanged { // for what a step waits may have come before it looks
		m.kind = engine.StepDone
	}
	n := c[m]
	c[m]++
	m.nth = n
	return m
}

// process is a replumb that runs.
type process struct {
	*exec.Cmd
	events *bufio.Scanner
	errors bytes.Buffer
	limit  context.CancelFunc
}

// target is the kubeconfig of a cluster that commands work on.
type target string

// replumb starts a command.
func (k target) replumb(t *testing.T, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	p := &process{Cmd: exec.CommandContext(ctx, os.Args[0], append(args, "-o", "json", "--kubeconfig", string(k))...), limit: cancel}
	p.Env = append(os.Environ(), asMain+"=1")
	p.Stderr = &p.errors
	p.Cancel = func() error { return p.Process.Signal(syscall.SIGQUIT) } // which tells where it hangs
	p.WaitDelay = 5 * time.Second
	out, err := p.StdoutPipe()
	if err == nil {
		err = p.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.events = bufio.NewScanner(out)
	return p
}

// next is the next event; false, if there is none any more.
func (p *process) next(t *testing.T) (e engine.Event, ok bool) {
	t.Helper()
	if !p.events.Scan() {
		return e, false
	}
	if err := json.Unmarshal(p.events.Bytes(), &e); err != nil {
		t.Fatalf("%s: %v", p.events.Text(), err)
	}
	return e, true
}

// end waits for the process and fails the test if it did not succeed.
func (p *process) end(t *testing.T, last []engine.Event) {
	t.Helper()
	defer p.limit()
	if err := p.Wait(); err != nil {
		for _, e := range last[max(0, len(last)-8):] {
			t.Logf("%s %s %s %s: %s", e.Time.Format(time.StampMilli), e.Kind, e.Phase, e.Step, e.Error)
		}
		t.Fatalf("replumb %s: %v\n%s", strings.Join(p.Args[1:], " "), err, &p.errors)
	}
}

// whole runs a command to its end.
func (k target) whole(t *testing.T, args ...string) []moment {
	t.Helper()
	p := k.replumb(t, args...)
	var events []engine.Event
	var moments []moment
	seen := counter{}
	for e, ok := p.next(t); ok; e, ok = p.next(t) {
		events, moments = append(events, e), append(moments, seen.next(e))
	}
	p.end(t, events)
	return moments
}

// killed runs a command and kills it at a moment. It reports whether the moment came.
func (k target) killed(t *testing.T, at moment, args ...string) bool {
	t.Helper()
	p := k.replumb(t, args...)
	var events []engine.Event
	seen := counter{}
	for e, ok := p.next(t); ok; e, ok = p.next(t) {
		events = append(events, e)
		if seen.next(e) != at {
			continue
		}
		if err := p.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
		_ = p.Wait() // it was killed, or had just ended
		p.limit()
		return true
	}
	p.end(t, events)
	return false
}

// phase is where the Migration says that it stands; nothing, if there is none.
func (k target) phase(t *testing.T) v1alpha1.Phase {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", string(k))
	must(t, err)
	c, err := kube.Connect(config)
	must(t, err)
	m := &v1alpha1.Migration{}
	must(t, client.IgnoreNotFound(c.Get(t.Context(), client.ObjectKey{Name: "move"}, m)))
	return m.Status.Phase
}
