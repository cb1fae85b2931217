package fleet

import (
	"strings"
	"testing"
)

func TestProgress(t *testing.T) {
	a, b := &ClusterTarget{Cluster: Cluster{Name: "a"}}, &ClusterTarget{Cluster: Cluster{Name: "b"}}
	for _, quiet := range []bool{false, true} {
		var out strings.Builder
		p := &ProgressPrinter{Out: &out, Quiet: quiet}
		p.OnEvent(Event{Kind: WaveStarted, Wave: "one"})
		p.OnEvent(Event{Kind: ClusterStarted, Cluster: "a"})
		for _, text := range []string{
			`{"kind":"PhaseStarted","phase":"check","message":"Check"}`,
			`{"kind":"StepUnchanged","phase":"check","step":"s"}`,
			`{"kind":"PhaseDone","phase":"check","seconds":1}`,
			`{"kind":"StepDone","phase":"move","step":"hop/a","message":"Move a"}`,
			`{"kind":"StepDone","phase":"move","step":"hop/b","message":"Move b","note":"slow"}`,
			`{"kind":"StepWaiting","phase":"repoint","step":"g","message":"Restart","error":"old range","guide":"set the flag\nrestart"}`,
			`{"kind":"StepWaiting","phase":"repoint","step":"g","message":"Restart","error":"old range","guide":"set the flag\nrestart"}`,
			`{"kind":"PhaseDone","phase":"move","seconds":12.3}`,
			`garbage`,
		} {
			p.OnLine(a, OutputLine{Text: text, Event: true})
		}
		p.OnLine(a, OutputLine{Text: "error: no\x1b[2J"})
		p.OnLine(b, OutputLine{Text: `{"migration":"m","phase":"Applying","stage":"move","counts":{"total":9,"moved":4}}`, Event: true})
		p.OnLine(b, OutputLine{Text: `{"migration":"m","phase":"Applying","gate":"restart it","counts":{"total":9,"moved":4}}`, Event: true})
		p.OnEvent(Event{Kind: ClusterFailed, Cluster: "a", ExitCode: 4})
		want := `==> wave one
a: begins
a: phase move
a: Move b: done, but: slow
a: waits for you: Restart
a: set the flag
a: restart
a: phase move: done (12s)
a: error: no[2J
b: the operator: Applying (move), 4 of 9 moved
b: waits for you: restart it
a: ended with exit code 4
`
		if quiet {
			want = "a: Move b: done, but: slow\na: waits for you: Restart\na: set the flag\na: restart\na: error: no[2J\n" +
				"b: waits for you: restart it\na: ended with exit code 4\n"
		}
		if out.String() != want {
			t.Errorf("quiet %t: %s", quiet, &out)
		}
	}
}

func TestTagged(t *testing.T) {
	for line, want := range map[string]string{
		`{"kind":"RunDone"}`: `{"cluster":"eu-1","kind":"RunDone"}`, `{}`: `{"cluster":"eu-1"}`, `[1]`: "", `{"a":`: "", "": "",
	} {
		if got, ok := Tagged("eu-1", line); got != want || ok != (want != "") {
			t.Errorf("%s: %s", line, got)
		}
	}
}
