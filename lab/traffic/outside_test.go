package traffic

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
)

// speaking is an outpost whose client is a shell script that may use $target.
func speaking(script string) Outpost {
	return Outpost{Name: "bastion", Client: "client", Command: func(ctx context.Context, _ ...string) (*exec.Cmd, error) {
		target := Source{Service: "/", Via: ByIngress}.Target()
		return exec.CommandContext(ctx, "sh", "-c", "target='"+target+"'\n"+script), nil
	}}
}

// onlyIngress are the calls that such a client reports on.
func onlyIngress() Calls {
	return Calls{Namespace: outsideNamespace, Targets: map[Via][]probe.Target{ByIngress: {{Name: "/", Kind: probe.HTTP, Address: "x:80"}}}}
}

const reports = `i=0; while [ $i -lt 3 ]; do
	echo "{\"t\":\"$target\",\"n\":$i,\"s\":$((10+i)),\"q\":5,\"ok\":5,\"l\":0}"; i=$((i+1)); done
`

func TestOutsideIsFollowed(t *testing.T) {
	w := newWatch(t.Context(), &givenLogs{})
	if err := w.AddOutside(t.Context(), speaking(reports+"exec sleep 600"), onlyIngress()); err != nil {
		t.Fatal(err)
	}
	three := func(s probe.Series) bool { return len(s) == 3 }
	if err := w.Await(t.Context(), 20*time.Second, "three windows", Outside, three); err != nil {
		t.Fatal(err)
	}
	w.Stop() // which ends it, or this test would take ten minutes
}

func TestOutsideIsNeverTakenForWell(t *testing.T) {
	for script, want := range map[string]string{
		reports:                            "the log has ended",
		"echo 'error: no configuration'":   "error: no configuration",
		"echo error: no configuration >&2": "error: no configuration",
	} {
		w := newWatch(t.Context(), &givenLogs{})
		if err := w.startOutside(speaking(script), onlyIngress()); err != nil {
			t.Fatal(err)
		}
		err := w.Await(t.Context(), 20*time.Second, "traffic", All, func(probe.Series) bool { return false })
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want it to contain %q", err, want)
		}
		w.Stop()
	}
}

func TestSteadyFor(t *testing.T) {
	good, bad := probe.Interval{Sent: 5, OK: 5}, probe.Interval{Sent: 5, OK: 4, Failed: 1}
	for _, tt := range []struct {
		series probe.Series
		want   bool
	}{
		{nil, false},
		{probe.Series{good, good}, false},
		{probe.Series{bad, good, good}, true},
		{probe.Series{good, bad, good}, false},
		{probe.Series{good, good, bad}, false},
	} {
		if got := steadyFor(2)(tt.series); got != tt.want {
			t.Errorf("steady for two seconds after %+v: %v", tt.series, got)
		}
	}
}

func TestCallEdge(t *testing.T) {
	calls := CallEdge(
		Outpost{Token: "/t", CA: "/c"},
		"ingress.lab.example",
		"api.lab.example",
		Rates{Request: 5, LookUp: 1},
		"/",
		"/shop/front/",
	)
	config, sources := calls.config("bastion")
	if _, err := config.Resolve(""); err != nil {
		t.Fatal(err)
	}
	if len(sources) != 4 {
		t.Errorf("there are %d sources: %v", len(sources), sources)
	}
	for _, target := range config.Targets {
		if time.Duration(target.Timeout) != 5*time.Second {
			t.Errorf("%s waits %v", target.Name, time.Duration(target.Timeout))
		}
		if !Outside(sources[target.Name]) {
			t.Errorf("%s is not outside", target.Name)
		}
	}
}
