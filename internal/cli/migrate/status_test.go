package migrate

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/migration"
)

// fiveThousand is a migration in the middle of many Services.
func fiveThousand() *statusDocument {
	services := migration.TextBlock{Head: []string{"SERVICE", "STATE"}, Settled: func(row []string) bool { return row[1] == "moved" }}
	for i := range 5000 {
		state := "waiting"
		if i < 372 {
			state = "moved"
		}
		services.Rows = append(services.Rows, []string{fmt.Sprintf("shop/s%d", i), state})
	}
	var holds []string
	for i := range 100 {
		holds = append(holds, fmt.Sprintf("pod %d", i))
	}
	return &statusDocument{statusHead{
		Migration: "move", Phase: v1alpha1.PhaseApplying, Stage: "move", Next: "replumb apply -f FILE",
		Gates: []gateLine{{Title: "Renew certificates", Instructions: "do\nthis: replumb status", Since: time.Unix(0, 0).UTC()}},
		found: migration.StatusDocument{Summary: "372 of 5000 moved", Text: []migration.TextBlock{services, migration.Holding(holds)}},
	}}
}

// TestStatusSaysFirstWhatMatters: where it stands is the first line, and what is not there yet
// comes before what is.
func TestStatusSaysFirstWhatMatters(t *testing.T) {
	var short, wide strings.Builder
	if err := showStatus(&short, fiveThousand(), shownRows, command.Plugin); err != nil {
		t.Fatal(err)
	}
	if err := showStatus(&wide, fiveThousand(), everyRow, command.Standalone); err != nil {
		t.Fatal(err)
	}
	const first = "migration move: Applying (move); 372 of 5000 moved\n" +
		"waits for you since 1970-01-01T00:00:00Z: Renew certificates\n  do\n  this: kubectl replumb status\nnext: replumb apply -f FILE\n\nSERVICE"
	if !strings.HasPrefix(short.String(), first) {
		t.Errorf("begins with %q", short.String()[:min(300, short.Len())])
	}
	if lines := strings.Count(short.String(), "\n"); lines > 60 {
		t.Errorf("%d lines", lines)
	}
	for _, want := range []string{"shop/s372 ", "and 4980 more (-o wide has all)\n", "holds the old range: pod 19\nand 80 more (-o wide has all)\n"} {
		if !strings.Contains(short.String(), want) {
			t.Errorf("lacks %q:\n%s", want, &short)
		}
	}
	if strings.Contains(short.String(), "shop/s1 ") {
		t.Error("what has moved takes the room of what has not")
	}
	if lines := strings.Count(wide.String(), "\n"); lines != 5107 || strings.Contains(wide.String(), "more (-o") {
		t.Errorf("-o wide has %d lines", lines)
	}
}

// TestBounded: one more line is never replaced by another.
func TestBounded(t *testing.T) {
	for n, want := range map[int]string{0: "", 2: "0 1 ", 3: "0 1 2 ", 4: "0 1 and 2 more (-o wide has all)\n"} {
		var b strings.Builder
		lines := make([]int, n)
		for i := range lines {
			lines[i] = i
		}
		bounded(&b, 2, lines, func(i int) { fmt.Fprintf(&b, "%d ", i) })
		if b.String() != want {
			t.Errorf("%d lines: %q, want %q", n, &b, want)
		}
	}
}

// TestProofLines: what was lost, late and not measured stands apart, and a node of which too little
// is known is named.
func TestProofLines(t *testing.T) {
	var b strings.Builder
	proofLines(&b, &v1alpha1.ProofStatus{
		Nodes: 1, Sent: 12_345, Late: 3, NotMeasured: 35,
		Silent: []string{"b: 35 of 2,135 requests could not be measured there, so that nothing can be said of what was lost"},
	}, 5)
	const want = "probes on 1 node in the latest run: 12,345 requests, 0 failed, 3 late, 35 not measured; report has all runs\n" +
		"not probed: b: 35 of 2,135 requests could not be measured there, so that nothing can be said of what was lost\n"
	if b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
