package conformance

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func readFixture(t *testing.T, name string) []Result {
	t.Helper()
	f, err := os.Open("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	results, err := ReadReport(f)
	if err != nil {
		t.Fatal(err)
	}
	return results
}

// TestReadReport reads a report in which tests pass, fail, panic, skip themselves, and are not chosen.
func TestReadReport(t *testing.T) {
	want := map[string]Outcome{
		"[sig-network] DNS should provide DNS for services [Conformance]": Passed,
		"[sig-network] Services should serve a basic endpoint from pods":  Failed,
		"[sig-network] Services should panic":                             Failed,
		"[sig-network] Topology Hints should distribute endpoints evenly": Skipped,
		"[sig-network] Services should be cut off":                        Failed,
	}
	results := readFixture(t, "before.xml")
	if len(results) != len(want) {
		t.Errorf("%d results, not %d: %v", len(results), len(want), results)
	}
	for _, r := range results {
		if r.Outcome != want[r.Name] {
			t.Errorf("%s: %s, want %s", r.Name, r.Outcome, want[r.Name])
		}
		if r.Outcome != Passed && r.Message == "" {
			t.Errorf("%s: it does not say why", r.Name)
		}
	}
}

// TestReadReportFails has reports from which nothing follows.
func TestReadReportFails(t *testing.T) {
	for name, text := range map[string]string{
		"cut off":      `<testsuites><testsuite><testcase name="[It] a" status="passed">`,
		"nothing ran":  `<testsuites><testsuite><testcase name="[It] a" status="skipped"><skipped message="skipped"/></testcase></testsuite></testsuites>`,
		"setup failed": `<testsuites><testsuite><testcase name="[It] a" status="passed"/><testcase name="[SynchronizedBeforeSuite]" status="failed"><failure>no nodes</failure></testcase></testsuite></testsuites>`,
	} {
		if results, err := ReadReport(strings.NewReader(text)); err == nil {
			t.Errorf("%s: %v", name, results)
		}
	}
}

// TestBroken compares states: of a test that passes in the first it wants that it passes in the others.
func TestBroken(t *testing.T) {
	before := State{
		"before",
		[]Result{{Name: "a", Outcome: Passed}, {Name: "b", Outcome: Passed}, {Name: "c", Outcome: Failed}, {Name: "d", Outcome: Passed}},
	}
	same := State{"between", before.Results}
	if broken := Broken([]State{before, same}); len(broken) != 0 {
		t.Errorf("the same is said to be broken: %q", broken)
	}
	after := State{"after", []Result{{Name: "a", Outcome: Passed}, {Name: "b", Outcome: Failed}, {Name: "c", Outcome: Failed}}}
	want := []string{"after: b: failed", "after: d: did not run"}
	if broken := Broken([]State{before, same, after}); !slices.Equal(broken, want) {
		t.Errorf("broken: %q, want %q", broken, want)
	}
}

func TestWriteTable(t *testing.T) {
	var b strings.Builder
	err := WriteTable(&b, []State{
		{"before", []Result{{Name: "[sig-network] a|b", Outcome: Passed}, {Name: "c", Outcome: Passed}}},
		{"after", []Result{{Name: "[sig-network] a|b", Outcome: Failed}}},
	})
	want := "| test | before | after |\n|---|---|---|\n| a\\|b | passed | failed |\n| c | passed | did not run |\n"
	if err != nil || b.String() != want {
		t.Errorf("%v, %s, want\n%s", err, b.String(), want)
	}
}

// TestParseLibraries reads what ldd prints.
func TestParseLibraries(t *testing.T) {
	got, err := parseLibraries(
		"\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/libc.so.6 (0x0000)\n\t/lib64/ld-linux-x86-64.so.2 (0x0000)\n",
	)
	if want := []string{"/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := parseLibraries("\tlibx.so => not found\n"); err == nil {
		t.Errorf("a library that is not there gives %v", got)
	}
}
