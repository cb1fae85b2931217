//go:build apiserver && long

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// runbook is a page whose commands are run.
type runbook struct {
	*testing.T
	page, migration string
}

func readRunbook(t *testing.T, name, migration string) *runbook {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbooks", name))
	if err != nil {
		t.Fatal(err)
	}
	return &runbook{t, string(page), migration}
}

// commands are the lines below a heading of the page that a person types, as they stand but for the
// names that the reader puts in.
func (r *runbook) commands(heading string) (all []string) {
	r.Helper()
	_, below, found := strings.Cut(r.page, "\n"+heading+"\n")
	if !found {
		r.Fatalf("the page has no %q", heading)
	}
	below, _, _ = strings.Cut(below, "\n#")
	for line := range strings.Lines(below) {
		code, indented := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    ")
		if indented && (strings.HasPrefix(code, "replumb ") || strings.HasPrefix(code, "kubectl ")) {
			all = append(all, strings.NewReplacer("NAMESPACE", "shop", "SERVICE", "kept", "NAME", r.migration, "YOU", "sre").Replace(code))
		}
	}
	if len(all) == 0 {
		r.Errorf("there is nothing to type below %q", heading)
	}
	return all
}

// script has a terminal for what asks. A grep that prints nothing fails.
func (r *runbook) script(commands []string, files string) string {
	text := "exec kubectl apply -f cluster.yaml\n"
	for _, c := range commands {
		quoted := strings.ReplaceAll(c, "'", "''")
		if strings.HasSuffix(c, "# prints nothing") {
			text += "! exec bash -o pipefail -c '" + quoted + "'\n! stdout .\n"
			continue
		}
		answer := "yes"
		if strings.HasPrefix(c, "replumb finish") {
			answer = "cluster" // whose name it asks for
		}
		text += "ttyin -stdin " + answer + "\nexec bash -o pipefail -c '" + quoted + "'\n"
	}
	dir := r.TempDir()
	err := os.WriteFile(filepath.Join(dir, "runbook.txtar"), fmt.Appendf(nil, "%s\n-- yes --\nyes\n-- cluster --\nenvtest\n%s", text, files), 0o600)
	if err != nil {
		r.Fatal(err)
	}
	return dir
}

const servicesOfRunbook = `-- move.yaml --
apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: move}
spec:
  serviceCIDR: {to: [172.24.0.0/16], drain: 0s, clusterServices: Stay}
  batch: {settle: 0s}
-- cluster.yaml --
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: shop}
spec: {clusterIP: 10.96.3.7, selector: {app: cart}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: kept, namespace: shop}
spec: {clusterIP: 10.96.3.8, selector: {app: kept}, ports: [{port: 80}]}
`

// TestServiceRunbook runs the lines of the runbook one after the other, to its end and back.
func TestServiceRunbook(t *testing.T) {
	r := readRunbook(t, "service-cidr.md", "move")
	rights := r.commands("### Permissions")
	there := slices.Concat(rights[:1], r.commands("## 1. Check"), r.commands("## 2. Plan"), r.commands("## 3. Apply"))
	for name, then := range map[string][]string{
		"finish":   r.commands("## 7. Finish (irreversible)"),
		"rollback": slices.Concat(r.commands("## Stopping and going on"), r.commands("## Rollback")),
	} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, r.script(slices.Concat(there, then, rights[1:]), servicesOfRunbook))
		})
	}
}

// TestServiceRunbookWatched runs them with agents, for which replumb makes Services of its own.
func TestServiceRunbookWatched(t *testing.T) {
	r := readRunbook(t, "service-cidr.md", "move")
	lines := slices.Concat(r.commands("## 1. Check"), r.commands("## 2. Plan"), r.commands("## 3. Apply"))
	files := strings.Replace(servicesOfRunbook, "spec:\n", "spec:\n  image: replumb\n  proof: {soak: 1s}\n", 1)
	_, network, _ := strings.Cut(podsOfRunbook, "-- cluster.yaml --\n")
	files = strings.Replace(files, "-- cluster.yaml --\n", "-- cluster.yaml --\n"+network+"---\n", 1)
	played(t, r.script(lines, files), twoNodes())
}

const podsOfRunbook = `-- move.yaml --
apiVersion: replumb.dev/v1alpha1
kind: Migration
metadata: {name: pods}
spec:
  image: replumb
  proof: {agents: Disabled}
  podCIDR: {to: [10.245.0.0/16]}
  batch: {settle: 0s}
-- cluster.yaml --
apiVersion: crd.projectcalico.org/v1
kind: IPPool
metadata: {name: default}
spec: {cidr: 10.244.0.0/16, blockSize: 26, vxlanMode: Always, ipipMode: Never, natOutgoing: true, nodeSelector: all()}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: c}]}}
`

// TestPodRunbook runs the lines of the other runbook.
func TestPodRunbook(t *testing.T) {
	r := readRunbook(t, "pod-cidr.md", "pods")
	there := slices.Concat(r.commands("## 1. Check"), r.commands("## 2. Plan"), r.commands("## 3. Try out, then switch"), r.commands("## 4. Roll"))
	for name, then := range map[string][]string{
		"finish":   slices.Concat(r.commands("## 5. Look"), r.commands("## 6. Finish")),
		"rollback": r.commands("## Rollback"),
	} {
		t.Run(name, func(t *testing.T) {
			played(t, r.script(slices.Concat(there, then), podsOfRunbook), twoNodes())
		})
	}
}
