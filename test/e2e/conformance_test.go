package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/replumb/replumb/lab/component"
	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
	"github.com/replumb/replumb/test/conformance"
)

// enoughTests is how many of Kubernetes' tests must have passed before a move for the comparison to say anything.
const enoughTests = 40

// TestConformance runs Kubernetes' own tests of the network before the default range moves with all its Services, kube-dns and kubernetes
// among them, between apply and finish, and afterwards: what passes before has to pass in all three. The control stops kube-proxy, which
// such a test must notice.
func TestConformance(t *testing.T) {
	l := bringUp(t, named("e2e-conformance")) // with Calico, API servers of a lab reach no pods, which tests ask them for
	s := suiteFor(t, l)
	t.Run("Control", func(t *testing.T) { testConformanceControl(t, l, s) })
	t.Run("States", func(t *testing.T) { testConformanceStates(t, l, s) })
}

func testConformanceStates(t *testing.T, l *lab.Lab, s conformance.Suite) {
	if _, err := openShop(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	must(t, workload.Ensure(t.Context(), l.Client(), oddServices()...))
	var states []conformance.State
	in := func(name string) {
		state := runTests(t, s, name, conformance.Network())
		for _, failing := range state.Failing() {
			t.Logf("%s: %s", name, failing)
		}
		states = append(states, state)
	}
	in("before")
	attend(t, l, newRange, 0, "apply", "-f", writeWhole(t, l, "conforming", shortDrain))
	in("between apply and finish")
	attend(t, l, newRange, 0, "finish", "conforming", "--yes")
	requireNoTrace(t, l)
	in("afterwards")

	writeStates(t, filepath.Join(s.Dir, "table.md"), states)
	for _, failing := range states[0].Failing() {
		t.Errorf("before any move: %s", failing)
	}
	for _, broken := range conformance.Broken(states) {
		t.Error(broken)
	}
	if passed := states[0].Count(conformance.Passed); passed < enoughTests {
		t.Errorf("only %d tests passed before the move, not %d", passed, enoughTests)
	}
}

// testConformanceControl has one test pass, and fail when no node learns of Services any longer.
func testConformanceControl(t *testing.T, l *lab.Lab, s conformance.Suite) {
	one := conformance.Choice{Focus: []string{`Services should serve a basic endpoint from pods`}}
	well := runTests(t, s, "control-well", one)
	if got := well.Count(conformance.Passed); got != 1 {
		t.Fatalf("%d tests passed, not 1: %s", got, strings.Join(well.Failing(), "; "))
	}
	for _, node := range l.NodeNames() {
		defer stopProxy(t, l, node)()
	}
	ill := runTests(t, s, "control-ill", one)
	if got := ill.Count(conformance.Failed); got != 1 {
		t.Errorf("%d tests failed while kube-proxy was stopped, not 1", got)
	}
	if broken := conformance.Broken([]conformance.State{well, ill}); len(broken) != 1 {
		t.Errorf("the comparison says %q", broken)
	}
}

func runTests(t *testing.T, s conformance.Suite, name string, c conformance.Choice) conformance.State {
	t.Helper()
	state, err := s.Run(t.Context(), name, c)
	must(t, err)
	t.Logf("%s: %d tests passed, %d failed, %d skipped themselves", name, state.Count(conformance.Passed),
		state.Count(conformance.Failed), state.Count(conformance.Skipped))
	return state
}

// suiteFor builds Kubernetes' tests, or finds them built, and gives the lab's nodes the images that they ask for.
func suiteFor(t *testing.T, l *lab.Lab) conformance.Suite {
	t.Helper()
	root, err := component.SourceRoot()
	must(t, err)
	b, err := component.NewBuilder(t.Logf)
	must(t, err)
	named, err := component.Named("e2e", "coredns")
	must(t, err)
	dirs := map[string]string{}
	for _, c := range named {
		if dirs[c.Name], err = b.Dir(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	built := conformance.Built{E2E: dirs["e2e"], CoreDNS: dirs["coredns"], Pause: filepath.Join(t.TempDir(), "pause")}
	must(t, component.BuildMain(t.Context(), component.Lab, "./images/pause", built.Pause))
	archive := filepath.Join(t.TempDir(), "images.tar")
	must(t, conformance.WriteImages(archive, built))
	must(t, l.Workers().Load(t.Context(), archive))
	return conformance.Suite{
		Built: built, Kubeconfig: l.Kubeconfig(), Kubectl: l.Kubectl(), Nodes: len(l.NodeNames()), Procs: 6, Timeout: "15m",
		Dir: filepath.Join(root, "build", "conformance"),
	}
}

func writeStates(t *testing.T, path string, states []conformance.State) {
	t.Helper()
	f, err := os.Create(path)
	must(t, err)
	defer func() { _ = f.Close() }()
	must(t, conformance.WriteTable(f, states))
}
