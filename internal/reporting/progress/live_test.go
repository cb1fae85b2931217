package progress

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/reporting/journal"
)

// noon is when every migration of these tests begins.
func noon() time.Time { return time.Date(2026, 11, 23, 12, 0, 0, 0, time.UTC) }

// moving is a migration of Services in which so many of the batches of ten are through, each in six
// seconds.
func moving(total, batches int) Input {
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "move"}}
	m.Spec.ServiceCIDR = &v1alpha1.ServiceCIDRSpec{To: []string{"172.24.0.0/16"}}
	m.Spec.Desired = v1alpha1.DesiredApplied
	m.Spec.Batch = v1alpha1.BatchSpec{Size: 10, Settle: &metav1.Duration{Duration: 2 * time.Second}}
	m.Status.Phase, m.Status.Stage = v1alpha1.PhaseApplying, "move"
	h := &journal.History{Runs: []journal.Run{{ID: "r1", Command: "replumb apply", Start: noon()}}}
	at := noon()
	add := func(e engine.Event) { h.Events = append(h.Events, journal.Event{Event: e, Run: "r1"}) }
	add(engine.Event{Time: at, Kind: engine.PhaseStarted, Phase: "move", Message: "Move Services", Total: total})
	for n := range batches {
		group := fmt.Sprintf("batch %d of %d", n+1, total/10)
		for i := range 10 {
			add(engine.Event{
				Time: at.Add(time.Duration(400*(i+1)) * time.Millisecond), Kind: engine.StepDone, Phase: "move", Group: group,
				Step: fmt.Sprintf("move/shop/s%d", 10*n+i), Role: engine.RoleMove, Seconds: 0.4,
			})
		}
		at = at.Add(6 * time.Second)
		add(
			engine.Event{
				Time:    at,
				Kind:    engine.StepDone,
				Phase:   "move",
				Group:   group,
				Step:    "settle/" + group,
				Role:    engine.RoleWait,
				Seconds: 2,
			},
		)
	}
	add(engine.Event{
		Time: at.Add(time.Second), Kind: engine.StepDone, Phase: "move", Group: fmt.Sprintf("batch %d of %d", batches+1, total/10),
		Step: "bridge/shop/next", Role: engine.RoleWrite, Seconds: 0.1,
	})
	return Input{
		Migration: m,
		Cluster:   "prod-eu (192.0.2.1:6443)",
		History:   h,
		Holder:    "root@host (pid 7, replumb apply)",
		Next:      "replumb apply -f FILE",
		Now:       at.Add(time.Second),
		Counts:    v1alpha1.Counts{Total: total, Moved: 10 * batches},
		Counted:   "Services",
		ByMoves:   true,
	}
}

func TestPage(t *testing.T) {
	in := moving(1000, 30)
	in.Migration.Status.Tiers = []v1alpha1.TierStatus{{Name: "canary", Total: 20, Moved: 20}, {Name: "web", Total: 980, Moved: 280}}
	in.Migration.Status.Proof = &v1alpha1.ProofStatus{Nodes: 3, Sent: 52_640}
	const want = `migration move on prod-eu (192.0.2.1:6443), 12:03:01 UTC
phase  Applying: move, batch 31 of 100
moved  [#########---------------------] 300 of 1,000 Services, 100 a minute
       all moved in about 7 min, by 12:10 UTC, without what gates, windows and restarts take
tiers  canary 20/20, web 280/980
lost   nothing of 52,640 requests in the latest run, from 3 nodes
lock   root@host (pid 7, replumb apply)
next   replumb apply -f FILE`
	if got := strings.Join(Look(in).Lines(Style{}), "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestGates: a gate that is waited at is there with its instructions in full; one that was passed,
// or of a run that ended, is not.
func TestGates(t *testing.T) {
	guide := "Change the address of cluster DNS:\n\n  1. edit clusterDNS\n  2. restart the kubelet"
	waiting := engine.Event{
		Time: noon().Add(time.Hour), Kind: engine.StepWaiting, Phase: "kubelets", Step: "gate/kubelets", Role: engine.RoleGate,
		Message: "Have kubelets use the new address", Error: "3 of 3 nodes have not", Guide: guide,
	}
	done, ended := waiting, waiting
	done.Kind, done.Guide, ended.Kind, ended.Guide = engine.StepDone, "", engine.RunInterrupted, ""
	again := waiting
	again.Guide, again.Error = "", "2 of 3 nodes have not"
	for name, tt := range map[string]struct {
		events []engine.Event
		gates  int
	}{
		"waited at": {[]engine.Event{waiting}, 1}, "waited at for longer": {[]engine.Event{waiting, again}, 1},
		"passed": {[]engine.Event{waiting, done}, 0}, "the run ended": {[]engine.Event{waiting, ended}, 0}, "none": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			in := moving(5000, 3)
			for _, e := range tt.events {
				in.History.Events = append(in.History.Events, journal.Event{Event: e, Run: "r1"})
			}
			v := Look(in)
			if len(v.Gates) != tt.gates {
				t.Fatalf("gates: %+v", v.Gates)
			}
			page := strings.Join(v.Lines(Style{}), "\n")
			want := "gate   Have kubelets use the new address (waits for you since 13:00 UTC)\n" +
				"       Change the address of cluster DNS:\n\n         1. edit clusterDNS\n         2. restart the kubelet\n"
			if strings.Contains(page, want) != (tt.gates == 1) {
				t.Errorf("the page is\n%s", page)
			}
		})
	}
}

// TestFits: whatever there is to say, the page has no more than 40 lines, and none is wider than
// the terminal. What gives way last are the instructions of gates.
func TestFits(t *testing.T) {
	in := moving(5000, 120)
	for i := range 60 {
		in.Migration.Status.Tiers = append(
			in.Migration.Status.Tiers,
			v1alpha1.TierStatus{Name: fmt.Sprintf("tier-number-%d", i), Total: 83},
		)
	}
	proof := &v1alpha1.ProofStatus{Nodes: 500, Sent: 1e9, Failed: 32, Silent: []string{"a: no", "b: no"}}
	for i := range 32 {
		proof.Losses = append(proof.Losses, v1alpha1.Loss{
			Node: fmt.Sprintf("node-%d", i), Probe: "shop/cart", Address: "10.96.3.7:80",
			LossWindow: v1alpha1.LossWindow{Failed: 1, Error: strings.Repeat("connection refused ", 9)},
		})
	}
	in.Migration.Status.Proof = proof
	long := make([]string, 25)
	for i := range long {
		long[i] = fmt.Sprintf("line %02d of what to do, which goes on for a while: %s", i, strings.Repeat("word ", 8))
	}
	in.History.Events = append(in.History.Events, journal.Event{Run: "r1", Event: engine.Event{
		Time: noon(), Kind: engine.StepWaiting, Step: "gate/a", Role: engine.RoleGate, Message: "Do it", Guide: strings.Join(long, "\n"),
	}}, journal.Event{Run: "r1", Event: engine.Event{
		Time: noon(), Kind: engine.StepWaiting, Step: "other", Message: "Wait \x1b[2J", Error: strings.Repeat("for long ", 40),
	}})
	v := Look(in)
	for _, size := range []struct{ width, height int }{{0, 0}, {80, 24}, {120, 40}, {200, 60}, {40, 30}, {110, 0}} {
		lines := v.Lines(Style{Width: size.width, Height: size.height})
		most, wide := size.height, size.width
		if most == 0 || most > 40 {
			most = 40
		}
		if wide == 0 {
			wide = 100
		}
		if len(lines) > most {
			t.Errorf("%+v: %d lines", size, len(lines))
		}
		for _, line := range lines {
			if utf8.RuneCountInString(line) > wide || strings.ContainsRune(line, '\x1b') {
				t.Errorf("%+v: %q has %d characters", size, line, utf8.RuneCountInString(line))
			}
		}
		page := strings.Join(lines, "\n")
		if !strings.Contains(page, "next   replumb") || !strings.Contains(page, "120") && !strings.Contains(page, "1,200") {
			t.Errorf("%+v: the page is\n%s", size, page)
		}
		if size.width >= 110 && (!strings.Contains(page, "line 00") || !strings.Contains(page, "line 24")) {
			t.Errorf("%+v: the instructions are not whole:\n%s", size, page)
		}
	}
}

// TestColor: colours stand around words, and take no room.
func TestColor(t *testing.T) {
	v := Look(moving(1000, 30))
	plain := strings.Join(v.Lines(Style{}), "\n")
	colored := strings.Join(v.Lines(Style{Color: true}), "\n")
	if strings.Contains(plain, "\x1b") || !strings.Contains(colored, "\x1b[1m") {
		t.Errorf("plain %q, coloured %q", plain, colored)
	}
	if got := regexp.MustCompile("\x1b\\[[0-9]*m").ReplaceAllString(colored, ""); got != plain {
		t.Errorf("without colours %q, want %q", got, plain)
	}
}

// TestOver: a migration is over when it has got where it was asked to, and no one works on it.
func TestOver(t *testing.T) {
	for name, tt := range map[string]struct {
		desired v1alpha1.DesiredState
		phase   v1alpha1.Phase
		holder  string
		over    bool
	}{
		"applying":             {v1alpha1.DesiredApplied, v1alpha1.PhaseApplying, "me", false},
		"stopped on the way":   {v1alpha1.DesiredApplied, v1alpha1.PhaseApplying, "", false},
		"applied":              {v1alpha1.DesiredApplied, v1alpha1.PhaseMoved, "", true},
		"applied again":        {v1alpha1.DesiredApplied, v1alpha1.PhaseMoved, "me", false},
		"about to finish":      {v1alpha1.DesiredFinished, v1alpha1.PhaseMoved, "", false},
		"finished":             {v1alpha1.DesiredFinished, v1alpha1.PhaseFinished, "", true},
		"finished, not let go": {v1alpha1.DesiredFinished, v1alpha1.PhaseFinished, "me", false},
		"rolled back":          {v1alpha1.DesiredRolledBack, v1alpha1.PhaseRolledBack, "", true},
	} {
		in := moving(100, 2)
		in.Migration.Spec.Desired, in.Migration.Status.Phase, in.Holder = tt.desired, tt.phase, tt.holder
		if v := Look(in); v.Over != tt.over {
			t.Errorf("%s: over is %t", name, v.Over)
		}
	}
	in := moving(100, 2)
	in.History, in.Holder = nil, ""
	if page := strings.Join(Look(in).Lines(Style{}), "\n"); !strings.Contains(page, "no one works on it") {
		t.Errorf("without a journal:\n%s", page)
	}
	in.Unseen = true
	if page := strings.Join(Look(in).Lines(Style{}), "\n"); strings.Contains(page, "no one works on it") {
		t.Errorf("who may not read the lock is told who has it:\n%s", page)
	}
}

// TestOtherKinds count the steps of their phase, and tell when the rest of them is through.
func TestOtherKinds(t *testing.T) {
	in := moving(1000, 30)
	in.Migration.Spec.ServiceCIDR, in.Migration.Spec.PodCIDR = nil, &v1alpha1.PodCIDRSpec{}
	in.Counted, in.ByMoves = "pods", false
	for i := range in.History.Events {
		in.History.Events[i].Done, in.History.Events[i].Total = i, 1100
	}
	v := Look(in)
	for i := range in.History.Events {
		in.History.Events[i].Role = engine.RoleWrite
	}
	if early := Look(in); early.Known {
		t.Errorf("a phase that moves nothing says when all will have moved: %v", early.Left)
	}
	if v.Rate != 0 || !v.Known || v.Left < 6*time.Minute || v.Left > 9*time.Minute || v.Unit != "pods" {
		t.Errorf("%+v", v)
	}
}

// TestScreen: a terminal is drawn upon, and everything else gets a page for each thing that
// happens.
func TestScreen(t *testing.T) {
	none := func(string) string { return "" }
	dumb := func(name string) string { return map[string]string{"TERM": "dumb"}[name] }
	for name, s := range map[string]func(*strings.Builder) *Screen{
		"no terminal": func(w *strings.Builder) *Screen { return NewScreen(w, -1, none) },
		"a dumb one":  func(w *strings.Builder) *Screen { return NewScreen(w, 0, dumb) },
	} {
		var w strings.Builder
		screen := s(&w)
		in := moving(1000, 30)
		screen.Show(Look(in))
		screen.Show(Look(in))
		in.Counts.Moved++
		screen.Show(Look(in)) // a little progress, a moment later
		in.Now = in.Now.Add(time.Minute)
		screen.Show(Look(in))
		in.Migration.Spec.Paused = true
		screen.Show(Look(in))
		if got := strings.Count(w.String(), "migration move"); got != 3 || strings.ContainsRune(w.String(), '\x1b') {
			t.Errorf("%s: %d pages in\n%s", name, got, &w)
		}
	}
	var w strings.Builder
	drawn := &Screen{w: &w, size: func() (int, int) { return 80, 24 }}
	v := Look(moving(1000, 30))
	drawn.Show(v)
	drawn.Show(v)
	if got := strings.Count(
		w.String(),
		"\x1b[2J",
	); got != 1 || strings.Count(w.String(), "\x1b[H") != 2 ||
		strings.Contains(w.String(), "\x1b[1m") {
		t.Errorf("drawn: %q", w.String())
	}
}

// TestProofTellsApart: late answers and what was not measured are neither lost nor nothing.
func TestProofTellsApart(t *testing.T) {
	for _, tt := range []struct {
		proof v1alpha1.ProofStatus
		want  Fact
	}{
		{v1alpha1.ProofStatus{Nodes: 3, Sent: 2000, Late: 7, NotMeasured: 1}, Fact{
			labelLost, "nothing of 2,000 requests in the latest run, from 3 nodes; 7 late; 1 not measured", Good,
		}},
		{v1alpha1.ProofStatus{Nodes: 2, Sent: 2000, NotMeasured: 9, Silent: []string{"a"}}, Fact{
			labelLost, "not known of 2,000 requests in the latest run, from 2 nodes; 9 not measured; 1 node is not probed, or not measured", Attention,
		}},
		{v1alpha1.ProofStatus{Nodes: 3, Sent: 2000, Failed: 2, NotMeasured: 9}, Fact{
			labelLost, "2 of 2,000 requests in the latest run, from 3 nodes; 9 not measured", Bad,
		}},
	} {
		if got := (View{Proof: &tt.proof}).proof(); got != tt.want {
			t.Errorf("%+v, want %+v", got, tt.want)
		}
	}
}
