package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestRunbooksOfAlerts: every alert links to the section of troubleshooting that names it.
func TestRunbooksOfAlerts(t *testing.T) {
	const page = "https://github.com/replumb/replumb/blob/main/docs/troubleshooting.md#"
	sections := sectionsOf(t, "troubleshooting.md")
	var file struct {
		Groups []struct {
			Rules []struct {
				Alert       string            `json:"alert"`
				Annotations map[string]string `json:"annotations"`
			} `json:"rules"`
		} `json:"groups"`
	}
	body, err := os.ReadFile("../deploy/monitoring/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(body, &file); err != nil {
		t.Fatal(err)
	}
	for _, g := range file.Groups {
		for _, r := range g.Rules {
			at, ours := strings.CutPrefix(r.Annotations["runbook_url"], page)
			if !ours || !strings.Contains(sections[at], r.Alert) {
				t.Errorf("no section that is about %s at %q", r.Alert, r.Annotations["runbook_url"])
			}
		}
	}
}

// sectionsOf are the texts below the headings of a page, by their anchors.
func sectionsOf(t *testing.T, name string) map[string]string {
	t.Helper()
	body, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, section := range regexp.MustCompile(`(?m)^#+ `).Split(string(body), -1) {
		heading, text, _ := strings.Cut(section, "\n")
		all[anchor(heading)] = text
	}
	return all
}
