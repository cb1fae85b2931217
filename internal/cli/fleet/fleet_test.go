package fleet

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/fleet"
)

func TestCheckRow(t *testing.T) {
	at := &fleet.ClusterTarget{Cluster: fleet.Cluster{Name: "a"}, Wave: "one"}
	const warns = `{"code":"RP1002","severity":"warning","outcome":"fail"}`
	const blocks = `{"code":"RP1001","severity":"blocking","outcome":"unknown"}`
	for name, tt := range map[string]struct {
		printed string
		end     fleet.Outcome
		want    string
	}{
		"ready":       {`{"items":[` + warns + `]}`, fleet.Outcome{}, "ready  RP1002 "},
		"blocked":     {`{"items":[` + warns + "," + blocks + `]}`, fleet.Outcome{Code: 3, Error: "blocked"}, "blocked RP1001 RP1002 "},
		"unreachable": {"", fleet.Outcome{Code: 1, Error: "no answer"}, "unknown   no answer"},
		"garbage":     {"{", fleet.Outcome{}, "unknown   it printed no findings"},
		"refused":     {`{"items":[` + warns + `]}`, fleet.Outcome{Code: 1, Error: "no right"}, "unknown  RP1002 no right"},
	} {
		row := newCheckRow(at, []byte(tt.printed), tt.end)
		got := strings.Join([]string{row.Result, strings.Join(row.Blocking, ","), strings.Join(row.Warnings, ","), row.Error}, " ")
		if got != tt.want || row.ExitCode != tt.end.Code {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

// TestFleetReportSums: requests are those of all clusters, and one without an answer is not counted
// as well.
func TestFleetReportSums(t *testing.T) {
	at := &fleet.ClusterTarget{Cluster: fleet.Cluster{Name: "a"}, Wave: "one"}
	doc := document{Fleet: "prod", Migration: "move", Clusters: []reportRow{
		newReportRow(at, []byte(`{"summary":"4 Services moved","requests":{"sent":1200,"failed":1}}`), fleet.Outcome{}),
		newReportRow(at, []byte(`{"summary":"5 | Services <moved>","requests":{"sent":800,"late":3,"notMeasured":2}}`), fleet.Outcome{}),
		newReportRow(at, nil, fleet.Outcome{Code: 1, Error: "no answer"}),
		{Cluster: "d", Wave: "two"},
	}}
	const want = "begun in 2 of 4 clusters, not known of 1; 1 of 2,000 requests failed, 3 answered late, 2 more not measured"
	if doc.Summary = doc.summarize(); doc.Summary != want {
		t.Errorf("%q", doc.Summary)
	}
	var b strings.Builder
	if err := doc.markdown(&b); err != nil || !strings.Contains(b.String(), `| one | a | 5 \| Services &lt;moved\> |`) ||
		!strings.Contains(b.String(), "| one | a | unknown: no answer |\n| two | d | not begun |\n") {
		t.Errorf("%s, %v", &b, err)
	}
	if row := newReportRow(at, []byte("{"), fleet.Outcome{}); row.ExitCode != fault.ExitError || row.Error == "" {
		t.Errorf("garbage: %+v", row)
	}
}

func TestSharedFlags(t *testing.T) {
	for line, want := range map[string]string{
		"":                                  "",
		"--as me --as-group a --as-group b": "--as=me --as-group=a --as-group=b",
		"--kubeconfig f --timeout 1m":       "",
		"--context a":                       "error",
		"--token a":                         "error",
	} {
		flags := pflag.NewFlagSet("", pflag.ContinueOnError)
		for _, name := range []string{"as", "kubeconfig", "timeout", "context", "token"} {
			flags.String(name, "", "")
		}
		flags.StringArray("as-group", nil, "")
		if err := flags.Parse(strings.Fields(line)); err != nil {
			t.Fatal(err)
		}
		shared, err := sharedFlags(flags)
		got := strings.Join(shared, " ")
		if errors.As(err, new(*command.UsageError)) {
			got = "error"
		}
		if got != want {
			t.Errorf("%s: %q, %v", line, got, err)
		}
	}
}

func TestFleetError(t *testing.T) {
	of := []*fleet.ClusterTarget{{Cluster: fleet.Cluster{Name: "a"}}, {Cluster: fleet.Cluster{Name: "b"}}, {Cluster: fleet.Cluster{Name: "c"}}}
	err := errorOf(of, func(i int) int { return []int{3, 0, 1}[i] })
	if command.ExitCode(err) != fault.ExitError || !strings.HasSuffix(err.Error(), "2 clusters: a, c") {
		t.Errorf("%d, %v", command.ExitCode(err), err)
	}
	if err := errorOf(of, func(int) int { return 0 }); err != nil {
		t.Error(err)
	}
}
