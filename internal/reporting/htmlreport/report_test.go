package htmlreport_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/net/html"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/journal"
	"github.com/replumb/replumb/internal/testing/samplereport"
)

var update = flag.Bool("update", false, "write golden files")

func TestGoldenJSON(t *testing.T) {
	in := samplereport.New(12, true)
	in.History.Samples = in.History.Samples[:10] // one probe's, to be read by people
	got, err := json.MarshalIndent(htmlreport.Build(in), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	got = append(got, '\n')
	const file = "testdata/report.json"
	if *update {
		if err := os.WriteFile(file, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("the report differs from %s: go test -run TestGoldenJSON -update writes it", file)
	}
}

func TestSummary(t *testing.T) {
	moved := samplereport.New(143, false)
	partly := samplereport.New(143, false)
	partly.History, partly.Migration.Status.Phase = &journal.History{}, v1alpha1.PhaseApplying
	partly.Migration.Status.Counts.Moved = 20
	back := samplereport.New(20, true)
	back.Migration.Status.Phase, back.Migration.Status.Counts = v1alpha1.PhaseRolledBack, v1alpha1.Counts{}
	one := func(spec v1alpha1.MigrationSpec, st v1alpha1.MigrationStatus) htmlreport.Input {
		m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "m"}, Spec: spec, Status: st}
		return htmlreport.Input{Migration: m, Words: migrations.All().Of(m).Report(m), Now: samplereport.Begin()}
	}
	over := v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseFinished}
	counted := v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseFinished, Proof: &v1alpha1.ProofStatus{Sent: 1204331}}
	counted.Nodes = []v1alpha1.NodeStatus{{Name: "a", Gone: true}, {Name: "b"}}
	for name, test := range map[string]struct {
		in   htmlreport.Input
		want string
	}{
		"services": {moved, "143 Services moved from 10.96.0.0/16 to 172.24.0.0/16 in 5 min; 0 of 182,400 requests failed"},
		"partly":   {partly, "20 of 143 Services moved from 10.96.0.0/16 to 172.24.0.0/16; no requests were counted"},
		"back":     {back, "Every Service is back at its old address in 10.96.0.0/16 in 4 min; 7 of 120,000 requests failed"},
		"pods": {
			one(v1alpha1.MigrationSpec{PodCIDR: &v1alpha1.PodCIDRSpec{To: []string{"10.245.0.0/16"}}}, over),
			"The pods moved to 10.245.0.0/16; no requests were counted",
		},
		"nodes": {
			one(v1alpha1.MigrationSpec{Nodes: &v1alpha1.NodesSpec{New: v1alpha1.NodeSet{CIDRs: []string{"10.20.0.0/16"}}}}, counted),
			"2 nodes left to 10.20.0.0/16; 0 of 1,204,331 requests failed",
		},
		"mirror": {
			one(v1alpha1.MigrationSpec{Mirror: &v1alpha1.MirrorSpec{Target: v1alpha1.ClusterReference{Context: "east"}}}, v1alpha1.MigrationStatus{}),
			"The cluster was mirrored in part to east; no requests were counted",
		},
		"cni": {
			one(v1alpha1.MigrationSpec{CNI: &v1alpha1.CNISpec{To: "calico"}}, over),
			"The network of pods was replaced to calico; no requests were counted",
		},
	} {
		d := htmlreport.Build(test.in)
		if d.Summary != test.want {
			t.Errorf("%s: %q, want %q", name, d.Summary, test.want)
		}
		var page bytes.Buffer
		if err := d.HTML(&page); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := html.Parse(&page); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusedRunIsRefused: a run that ended with an error before anything of it began, such as one
// that another one's lock refused.
func TestRefusedRunIsRefused(t *testing.T) {
	in := samplereport.New(12, true)
	in.History.Runs = append(in.History.Runs, journal.Run{ID: "late", Start: samplereport.Begin(), Command: "replumb apply"})
	in.History.Events = append(in.History.Events, journal.Event{Run: "late", Event: engine.Event{
		Time: samplereport.Begin(), Kind: engine.RunFailed, Error: "the lock is held",
	}})
	runs := htmlreport.Build(in).Runs
	if last := runs[len(runs)-1]; last.Outcome != htmlreport.Refused || last.Error == "" {
		t.Errorf("%+v", last)
	}
}

// TestLossesAddUp: what is counted and not listed is said.
func TestLossesAddUp(t *testing.T) {
	in := samplereport.New(12, true)
	d := htmlreport.Build(in)
	listed := int64(0)
	for _, l := range d.Losses {
		listed += int64(l.Failed)
	}
	if d.Requests.Failed != listed+d.Requests.Unlisted {
		t.Errorf("%d failed, %d are listed, %d are not", d.Requests.Failed, listed, d.Requests.Unlisted)
	}
	for i := range in.History.Samples {
		in.History.Samples[i].Failed += 3
	}
	d = htmlreport.Build(in)
	if d.Requests.Unlisted == 0 || !strings.Contains(strings.Join(d.Notes, "\n"), "in no entry of the list of losses") {
		t.Errorf("%d failed requests are not listed, and the notes are %q", d.Requests.Unlisted, d.Notes)
	}
}

func TestKilledRunHasNoEnd(t *testing.T) {
	d := htmlreport.Build(samplereport.New(40, false))
	if len(d.Runs) != 3 || d.Runs[0].Outcome != htmlreport.Open || d.Runs[1].Outcome != htmlreport.Done {
		t.Fatalf("runs: %+v", d.Runs)
	}
	count := map[htmlreport.Level]int{}
	for _, s := range d.Timeline {
		count[s.Level]++
		if s.End.Before(s.Start) {
			t.Errorf("%s %s ends before it begins", s.Level, s.Name)
		}
	}
	if count[htmlreport.LevelRun] != 3 || count[htmlreport.LevelPhase] != 7 || count[htmlreport.LevelTier] != 2 ||
		count[htmlreport.LevelBatch] != 5 {
		t.Errorf("spans: %v", count)
	}
}

func TestServicesComeFromBoth(t *testing.T) {
	in := samplereport.New(3, false)
	in.Services = append(in.Services,
		htmlreport.Service{Name: samplereport.Service(0), From: "10.96.0.1", To: "172.24.0.1", State: "half-hopped"}, // on its way back at present
		htmlreport.Service{Name: samplereport.Service(1), To: "172.24.0.2", State: "in-target"},
	)
	last := in.History.Moves[2]
	in.History.Moves = append(in.History.Moves, journal.Move{
		Service: last.Service, From: last.To, To: last.From, At: last.At.Add(time.Hour), Seconds: 3,
	})
	states := map[string]string{}
	for _, s := range htmlreport.Build(in).Services {
		states[s.Name] = s.State
		if s.State != "pinned" && s.From[:6] != "10.96." {
			t.Errorf("%s comes from %q", s.Name, s.From)
		}
	}
	want := map[string]string{samplereport.Service(0): "half-hopped", samplereport.Service(1): "moved", samplereport.Service(2): "returned", "shop/edge": "pinned"}
	for name, state := range want {
		if states[name] != state {
			t.Errorf("%s is %q, want %q", name, states[name], state)
		}
	}
}

func TestFailedRun(t *testing.T) {
	in := samplereport.New(0, false)
	in.History.Events = append(in.History.Events, journal.Event{Run: "c", Event: engine.Event{
		Kind: engine.RunFailed, Error: "the budget is spent", Time: in.Now,
	}})
	d := htmlreport.Build(in)
	if r := d.Runs[2]; r.Outcome != htmlreport.Failed || r.Error != "the budget is spent" || !d.End.Equal(in.Now) {
		t.Errorf("run: %+v, end %v", r, d.End)
	}
}

func TestLossesOnce(t *testing.T) {
	in := samplereport.New(3, true)
	more := in.History.Losses[0]
	more.Failed = 9
	in.Migration.Status.Proof = &v1alpha1.ProofStatus{Losses: []v1alpha1.Loss{more}}
	if l := htmlreport.Build(in).Losses; len(l) != 1 || l[0].Failed != 9 {
		t.Errorf("losses: %+v", l)
	}
}

// TestNothingBecomesMarkup puts hostile text wherever text can come from.
func TestNothingBecomesMarkup(t *testing.T) {
	const hostile = samplereport.Hostile
	in := samplereport.New(3, true)
	in.Migration.Name, in.Migration.Status.LastError = hostile, hostile
	in.Migration.Spec.ServiceCIDR.To = []string{hostile}
	in.Migration.Annotations["replumb.dev/"+hostile] = hostile
	in.Services[0].Name, in.Services[0].Reason = hostile, hostile
	in.Unread = []string{hostile}
	h := in.History
	h.Runs[0].Command, h.Runs[0].User, h.Runs[0].Version = hostile, hostile, hostile
	h.Samples[0].Probe, h.Findings[0].Message, h.Stragglers[0].Pod, h.Moves[0].Strategy = hostile, hostile, hostile, hostile
	for i := range h.Events {
		h.Events[i].Message, h.Events[i].Group, h.Events[i].Error = hostile, hostile, hostile
		if h.Events[i].Guide != "" {
			h.Events[i].Guide = hostile
		}
	}
	var page bytes.Buffer
	if err := htmlreport.Build(in).HTML(&page); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(bytes.NewReader(page.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	scripts := 0
	for n := range root.Descendants() {
		switch {
		case n.Type == html.ElementNode && n.Data == "script":
			scripts++
		case n.Type == html.ElementNode && (n.Data == "img" || n.Data == "iframe" || n.Data == "link"):
			t.Errorf("there is a %s", n.Data)
		}
		for _, a := range n.Attr {
			if strings.HasPrefix(a.Key, "on") || strings.Contains(a.Val, "javascript:") {
				t.Errorf("%s has %s=%q", n.Data, a.Key, a.Val)
			}
		}
	}
	if scripts != 3 || strings.Contains(page.String(), "<img") {
		t.Errorf("%d scripts", scripts)
	}
}

// TestPolicy holds the policy of the page against what is between its tags: nothing else is run or
// applied.
func TestPolicy(t *testing.T) {
	var page bytes.Buffer
	if err := htmlreport.Build(samplereport.New(3, true)).HTML(&page); err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(&page)
	if err != nil {
		t.Fatal(err)
	}
	policy, inline := "", map[string][]string{}
	for n := range root.Descendants() {
		for _, a := range n.Attr {
			switch {
			case a.Key == "content" && strings.Contains(a.Val, "default-src"):
				policy = a.Val
			case a.Key == "style":
				t.Errorf("%s has a style of its own, which no hash allows", n.Data)
			}
		}
		if n.Type == html.ElementNode && (n.Data == "style" || n.Data == "script" && len(n.Attr) == 0) {
			sum := sha256.Sum256([]byte(n.FirstChild.Data))
			inline[n.Data] = append(inline[n.Data], "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
		}
	}
	want := "default-src 'none'; base-uri 'none'; form-action 'none'; style-src " + strings.Join(inline["style"], " ") +
		"; script-src " + strings.Join(inline["script"], " ")
	if policy != want || len(inline["style"]) != 2 || len(inline["script"]) != 2 {
		t.Errorf("the policy is %s\nwant %s", policy, want)
	}
}

// TestHead says when, how long and who, and how far it got apart from what was lost.
func TestHead(t *testing.T) {
	stopped := samplereport.New(12, false)
	stopped.Migration.Status.Phase, stopped.Migration.Status.LastError = v1alpha1.PhaseApplying, "the API server is away"
	for name, test := range map[string]struct {
		in    htmlreport.Input
		wants []string
	}{
		"lost": {samplereport.New(143, true), []string{
			`<span class="chip">Finished</span>`, `<p class="verdict bad"><strong>7 of 182,400 requests failed.</strong>`,
			"4 Mar 2026, 20:00 to 22:06 UTC, 3 runs that took 5 min, by mara@ops-1, replumb v0.9.0", "<dd>143 of 143</dd>",
		}},
		"stopped": {stopped, []string{
			`<span class="chip">Applying</span>`, `<p class="verdict good"><strong>0 of `, "<strong>The last run stopped.</strong> the API server is away",
		}},
	} {
		var page strings.Builder
		if err := htmlreport.Build(test.in).HTML(&page); err != nil {
			t.Fatal(err)
		}
		for _, want := range test.wants {
			if !strings.Contains(page.String(), want) {
				t.Errorf("%s: the page lacks %s", name, want)
			}
		}
	}
}

// TestFramed leaves to the page around it what that has itself.
func TestFramed(t *testing.T) {
	in := samplereport.New(12, true)
	in.Migration.Status.LastError = "the API server is away"
	var page strings.Builder
	if err := htmlreport.Build(in).Framed(&page); err != nil {
		t.Fatal(err)
	}
	for _, twice := range []string{"<h1>", `class="when"`, "The last run stopped", "Services moved</dt>"} {
		if strings.Contains(page.String(), twice) {
			t.Errorf("the page has %s", twice)
		}
	}
}

// TestLateIsNoLoss: the report tells late answers and what was not measured from losses, in the
// journal's samples and in the status.
func TestLateIsNoLoss(t *testing.T) {
	sampled := samplereport.New(20, false)
	for i := range sampled.History.Samples {
		sampled.History.Samples[i].Late, sampled.History.Samples[i].NotMeasured = 1, 2
	}
	n := int64(len(sampled.History.Samples))
	counted := samplereport.New(20, false)
	counted.History = &journal.History{}
	counted.Migration.Status.Proof = &v1alpha1.ProofStatus{Sent: 1000, Late: n, NotMeasured: 2 * n}
	for name, in := range map[string]htmlreport.Input{"samples": sampled, "the status": counted} {
		d := htmlreport.Build(in)
		if d.Requests.Failed != 0 || d.Requests.Late != n || d.Requests.NotMeasured != 2*n || d.Requests.Known() {
			t.Errorf("%s: %+v", name, d.Requests)
		}
		want := fmt.Sprintf(", %s answered late, %s more not measured", humanize.Comma(n), humanize.Comma(2*n))
		if !strings.HasSuffix(d.Summary, want) {
			t.Errorf("%s: %s", name, d.Summary)
		}
		var page strings.Builder
		if err := d.HTML(&page); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(page.String(), "nothing can be said of what was lost") ||
			strings.Contains(page.String(), "No request failed") {
			t.Errorf("%s: the page says that nothing was lost", name)
		}
	}
}

// TestOldAddressesAreOfServices: a report of another kind has no section about clients of old
// addresses, and one without a run says so.
func TestOldAddressesAreOfServices(t *testing.T) {
	for kind, want := range map[string]bool{"Services": true, "Nodes": false} {
		in := samplereport.New(0, false)
		in.History, in.Services, in.Words.Kind = nil, nil, kind
		var page bytes.Buffer
		if err := htmlreport.Build(in).HTML(&page); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(page.String(), "Old addresses in use"); got != want {
			t.Errorf("%s: of old addresses: %t", kind, got)
		}
		if !strings.Contains(page.String(), "No run was recorded.") {
			t.Errorf("%s: runs are left open", kind)
		}
	}
}

// TestMarkdown: a ticket gets the verdict and what led to it, and text of others stays text.
func TestMarkdown(t *testing.T) {
	var b strings.Builder
	if err := htmlreport.Build(samplereport.New(12, true)).Markdown(&b); err != nil {
		t.Fatal(err)
	}
	page := b.String()
	for _, want := range []string{
		"# Report: migration services-to-172-24\n", "requests failed.** 12 Services moved from 10.96.0.0/16 to 172.24.0.0/16", "\n| cluster | shop-eu ",
		"\n## Phases\n\n| phase | what | began (UTC) | took | ended |\n|---|---|---|---|---|\n| secure | ", "\n## Losses\n", "\n## Gates\n", "\n## Findings\n",
		"| after 95 s |", "connection refused &lt;/script\\>",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("lacks %q:\n%s", want, page)
		}
	}
	b.Reset()
	in := samplereport.New(0, false)
	in.History, in.Services = nil, nil
	if err := htmlreport.Build(in).Markdown(&b); err != nil || strings.Contains(b.String(), "##") {
		t.Errorf("of nothing that is known: %v\n%s", err, b.String())
	}
}
