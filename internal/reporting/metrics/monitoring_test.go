package metrics

import (
	"encoding/json"
	"flag"
	"go/scanner"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "write what is made of deploy/monitoring")

const (
	monitoring = "../../../deploy/monitoring/"
	chart      = "../../../charts/replumb/files/"
)

var (
	ours = regexp.MustCompile(`\breplumb_[a-z_]+`)
	// foreign are the metrics of others that are asked for, by what exports them.
	foreign = map[string]string{
		"kube_deployment_status_replicas_available": "kube-state-metrics", "kube_service_info": "kube-state-metrics",
	}
	// suffixes are those of the series of a histogram.
	suffixes = regexp.MustCompile(`_(bucket|count|sum)$`)
)

// exported are the names of all metrics of this package.
func exported(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		var s scanner.Scanner
		s.Init(set.AddFile(file, -1, len(source)), source, nil, 0)
		for _, tok, text := s.Scan(); tok != token.EOF; _, tok, text = s.Scan() {
			if name := strings.Trim(text, `"`); tok == token.STRING && name != "" && ours.FindString(name) == name {
				all = append(all, name)
			}
		}
	}
	return all
}

// alerts is the file for rule_files of Prometheus.
type alerts struct {
	Groups []struct {
		Rules []struct {
			Alert       string            `json:"alert"`
			Expr        string            `json:"expr"`
			Labels      map[string]string `json:"labels"`
			Annotations map[string]string `json:"annotations"`
		} `json:"rules"`
	} `json:"groups"`
}

func readAlerts(t *testing.T) ([]byte, alerts) {
	t.Helper()
	body, err := os.ReadFile(monitoring + "alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var a alerts
	if err := yaml.Unmarshal(body, &a); err != nil {
		t.Fatal(err)
	}
	return body, a
}

// expressions are those of the dashboard, by where they are.
func expressions(t *testing.T) ([]byte, map[string]string) {
	t.Helper()
	body, err := os.ReadFile(monitoring + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Title   string `json:"title"`
			Targets []struct {
				Expr string `json:"expr"`
			} `json:"targets"`
		} `json:"panels"`
		Annotations struct {
			List []struct {
				Name string `json:"name"`
				Expr string `json:"expr"`
			} `json:"list"`
		} `json:"annotations"`
		Templating struct {
			List []struct {
				Name       string `json:"name"`
				Definition string `json:"definition"`
			} `json:"list"`
		} `json:"templating"`
	}
	if err := json.Unmarshal(body, &d); err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all["panel "+p.Title] += target.Expr + "\n"
		}
	}
	for _, a := range d.Annotations.List {
		all["annotation "+a.Name] = a.Expr
	}
	for _, v := range d.Templating.List {
		all["variable "+v.Name] = v.Definition
	}
	return body, all
}

// TestMonitoringAsksForWhatIsExported: every metric in alerts and in the dashboard is one that
// there is.
func TestMonitoringAsksForWhatIsExported(t *testing.T) {
	names := exported(t)
	if !slices.Contains(names, "replumb_run_state") {
		t.Fatalf("found %q", names)
	}
	_, all := expressions(t)
	_, rules := readAlerts(t)
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			all["alert "+r.Alert] = r.Expr
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" || r.Labels["severity"] == "" {
				t.Errorf("alert %s says too little", r.Alert)
			}
		}
	}
	page, err := os.ReadFile("../../../docs/troubleshooting.md")
	if err != nil {
		t.Fatal(err)
	}
	for where, expr := range all {
		if name, alert := strings.CutPrefix(where, "alert "); alert && !strings.Contains(string(page), name) {
			t.Errorf("docs/troubleshooting.md does not say what %s means", name)
		}
		for _, name := range ours.FindAllString(expr, -1) {
			if base := suffixes.ReplaceAllString(name, ""); !slices.Contains(names, name) && !slices.Contains(names, base) {
				t.Errorf("%s: there is no metric %s", where, name)
			}
		}
		for _, name := range regexp.MustCompile(`\bkube_[a-z_]+`).FindAllString(expr, -1) {
			if foreign[name] == "" {
				t.Errorf("%s: it is not said where %s comes from", where, name)
			}
		}
	}
}

// TestMonitoringCopies: the PrometheusRule and the files of the chart are made of the alerts and of
// the dashboard.
func TestMonitoringCopies(t *testing.T) {
	rules, _ := readAlerts(t)
	dashboard, _ := expressions(t)
	var lines []string
	for line := range strings.SplitSeq(strings.TrimRight(string(rules), "\n"), "\n") {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, "  "+line)
		}
	}
	rule := "# Generated from alerts.yaml: see TestMonitoringCopies in internal/reporting/metrics.\n" +
		"apiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  namespace: replumb-system\n  name: replumb\nspec:\n" +
		strings.Join(lines, "\n") + "\n"
	for file, want := range map[string]string{
		monitoring + "prometheusrule.yaml": rule, chart + "alerts.yaml": string(rules), chart + "dashboard.json": string(dashboard),
	} {
		if *update {
			if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(file); err != nil || string(have) != want {
			t.Errorf("%s is not up to date (%v): run the tests of this package with -update", file, err)
		}
	}
}
