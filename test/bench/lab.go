package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/replumb/replumb/lab/lab"
	"github.com/replumb/replumb/lab/workload"
)

// ofLab measures labs and tools, and writes the results into docs/design/measurements.md. It runs as root, on a machine that does nothing else.
func ofLab(flags *flag.FlagSet) func(context.Context) error {
	runs := flags.Int("runs", 5, "how often each short measurement is repeated")
	cold := flags.Bool("cold", false, "also build all components with empty caches (about 20 minutes)")
	doc := flags.String("doc", "docs/design/measurements.md", "document whose table is rewritten")
	bin := flags.String("bin", "bin", "folder of replumb and replumb-lab")
	return func(ctx context.Context) error { return measureLab(ctx, *runs, *cold, *bin, *doc) }
}

// row is one line of the table: what was measured, what we aim for, and each run's result.
type row struct {
	what, aim string
	times     []time.Duration
	note      string
}

func measureLab(ctx context.Context, runs int, cold bool, bin, doc string) error {
	var rows []row
	for _, measure := range []func() ([]row, error){
		func() ([]row, error) { return labUpDown(ctx, runs) },
		func() ([]row, error) { return help(ctx, bin, 4*runs) },
		func() ([]row, error) { return demo(ctx, bin) },
		func() ([]row, error) { return coldBuild(ctx, bin, cold) },
	} {
		more, err := measure()
		if err != nil {
			return err
		}
		rows = append(rows, more...)
	}
	return record(doc, rows)
}

// labUpDown measures from nothing to an answer of a pod through a Service, and back to nothing.
func labUpDown(ctx context.Context, runs int) ([]row, error) {
	up := row{what: "lab up, 2 nodes, until a pod answers through a Service", aim: "≤ 30 s"}
	down := row{what: "lab down", aim: "≤ 10 s"}
	topology := lab.Default()
	topology.Name = "bench"
	for i := range runs {
		start := time.Now()
		l, err := lab.Up(ctx, topology, lab.Options{})
		if err != nil {
			return nil, err
		}
		answered := answer(ctx, l)
		up.times = append(up.times, time.Since(start))
		start = time.Now()
		if _, err := lab.Down(ctx, topology.Name); err != nil {
			return nil, err
		}
		down.times = append(down.times, time.Since(start))
		if answered != nil {
			return nil, answered
		}
		fmt.Fprintf(os.Stderr, "lab, run %d of %d: up %s, down %s\n", i+1, runs, round(up.times[i]), round(down.times[i]))
	}
	return []row{up, down}, nil
}

// answer runs an echo server on the first node and asks it through its Service from the second.
func answer(ctx context.Context, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	echo := workload.Echo{Namespace: shop, Name: "bench", PartOf: "bench", Replicas: 1}
	if err := retry(ctx, func() error { // the ServiceAccount may not be there yet
		return workload.Ensure(ctx, l.Client(), append([]runtime.Object{workload.Namespace(shop)}, echo.Objects()...)...)
	}); err != nil {
		return err
	}
	service, err := l.Client().CoreV1().Services(shop).Get(ctx, echo.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	ask := fmt.Sprintf("exec 3<>/dev/tcp/%s/80 && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && grep -q '\"name\"' <&3", service.Spec.ClusterIP)
	return retry(ctx, func() error {
		_, err := l.Exec(ctx, l.NodeNames()[1], "bash", "-c", ask)
		return err
	})
}

func retry(ctx context.Context, f func() error) error {
	var last error
	err := wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		last = f()
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// help measures the start of replumb in turn with that of kubectl, so that a slow machine shows in both.
func help(ctx context.Context, bin string, runs int) ([]row, error) {
	kubectl, err := kubectlPath(ctx, bin)
	if err != nil {
		return nil, err
	}
	ours, theirs := row{what: "`replumb --help`", aim: "≤ 50 ms"}, row{what: "`kubectl --help`, in turn with it"}
	for range runs {
		for r, program := range map[*row]string{&ours: filepath.Join(bin, "replumb"), &theirs: kubectl} {
			start := time.Now()
			if err := exec.CommandContext(ctx, program, "--help").Run(); err != nil {
				return nil, err
			}
			r.times = append(r.times, time.Since(start))
		}
	}
	ours.note = fmt.Sprintf("%.2f of kubectl's", float64(median(ours.times))/float64(median(theirs.times)))
	return []row{ours, theirs}, nil
}

func kubectlPath(ctx context.Context, bin string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(bin, "replumb-lab"), "build", "kubernetes").Output()
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(string(out)) {
		if name, dir, _ := strings.Cut(strings.TrimSpace(line), "\t"); name == "kubernetes" {
			return filepath.Join(dir, "kubectl"), nil
		}
	}
	return "", errors.New("replumb-lab build printed no folder for kubernetes")
}

func demo(ctx context.Context, bin string) ([]row, error) {
	r := row{what: "`make demo`, components built", aim: "≤ 3 min"}
	start := time.Now()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "replumb-lab"), "demo",
		"--replumb", filepath.Join(bin, "replumb"), "--result", "build/demo/result.json")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("demo: %w", err)
	}
	r.times = append(r.times, time.Since(start))
	return []row{r}, nil
}

// coldBuild builds all components as on a machine that has never built anything.
func coldBuild(ctx context.Context, bin string, measure bool) ([]row, error) {
	r := row{what: "first build of all components, no build cache", aim: "≤ 25 min"}
	if !measure {
		r.note = "not measured in this run (`make bench COLD=1`)"
		return []row{r}, nil
	}
	dir, err := os.MkdirTemp("", "replumb-cold-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "replumb-lab"), "build")
	cmd.Env = append(os.Environ(), "XDG_CACHE_HOME="+dir, "GOCACHE="+filepath.Join(dir, "go"))
	cmd.Stderr = os.Stderr
	start := time.Now()
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	r.times = append(r.times, time.Since(start))
	return []row{r}, nil
}

// record puts the table between the markers of the document.
func record(doc string, rows []row) error {
	old, err := os.ReadFile(doc)
	if err != nil {
		return err
	}
	var table bytes.Buffer
	fmt.Fprintf(&table, "Measured on %s, %d processors.\n\n", time.Now().Format(time.DateOnly), goruntime.NumCPU())
	fmt.Fprintln(&table, "| what | aim | median | min | max | runs | note |\n|---|---|---|---|---|---|---|")
	for _, r := range rows {
		if len(r.times) == 0 {
			fmt.Fprintf(&table, "| %s | %s | | | | 0 | %s |\n", r.what, r.aim, r.note)
			continue
		}
		fmt.Fprintf(&table, "| %s | %s | %s | %s | %s | %d | %s |\n", r.what, r.aim, round(median(r.times)),
			round(slices.Min(r.times)), round(slices.Max(r.times)), len(r.times), r.note)
	}
	section := regexp.MustCompile(`(?s)(<!-- bench:begin -->\n).*?(<!-- bench:end -->)`)
	if !section.Match(old) {
		return fmt.Errorf("%s has no section between bench:begin and bench:end", doc)
	}
	updated := section.ReplaceAll(old, []byte("${1}"+table.String()+"${2}"))
	fmt.Print(table.String())
	return os.WriteFile(doc, updated, 0o644)
}

func median(times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[len(sorted)/2]
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(100 * time.Microsecond)
	}
	return d.Round(100 * time.Millisecond)
}
