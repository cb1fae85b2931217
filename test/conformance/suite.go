package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// Suite is Kubernetes' test suite, for one cluster.
type Suite struct {
	Built      Built
	Kubeconfig string
	Kubectl    string
	Nodes      int
	Procs      int    // tests that run at once
	Timeout    string // after which no further test begins, such as 1h
	Dir        string // of reports and logs; each run has a folder of its own
}

// Choice are the tests to run, as regular expressions that their names match, or must not match.
type Choice struct {
	Focus, Skip []string
}

// Run runs the tests that are chosen, and returns what became of each. That tests fail is no error.
func (s Suite) Run(ctx context.Context, name string, c Choice) (State, error) {
	dir := filepath.Join(s.Dir, name)
	if err := os.RemoveAll(dir); err != nil {
		return State{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return State{}, err
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return State{}, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.CommandContext(ctx, filepath.Join(s.Built.E2E, "ginkgo"), s.args(dir, c)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		return State{}, fmt.Errorf("ginkgo: %w", err)
	}
	results, err := readReports(dir)
	if err != nil {
		return State{}, fmt.Errorf("%w\nhint: see %s", err, log.Name())
	}
	return State{Name: name, Results: results}, ctx.Err()
}

func (s Suite) args(dir string, c Choice) []string {
	args := []string{"--procs", strconv.Itoa(s.Procs), "--no-color", "--timeout", s.Timeout}
	for _, f := range c.Focus {
		args = append(args, "--focus", f)
	}
	for _, f := range c.Skip {
		args = append(args, "--skip", f)
	}
	return append(args, filepath.Join(s.Built.E2E, "e2e.test"), "--",
		"--provider=skeleton", "--kubeconfig="+s.Kubeconfig, "--kubectl-path="+s.Kubectl, "--num-nodes="+strconv.Itoa(s.Nodes),
		"--report-dir="+dir, "--e2e-output-dir="+dir, "--disable-log-dump", "--ginkgo.output-interceptor-mode=none")
}

// readReports reads the only report in a folder.
func readReports(dir string) ([]Result, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "junit_*.xml"))
	if err != nil {
		return nil, err
	}
	if len(paths) != 1 {
		return nil, fmt.Errorf("junit reports in %s: %s: %w", dir, strings.Join(paths, ", "), fs.ErrNotExist)
	}
	f, err := os.Open(paths[0])
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return ReadReport(f)
}
