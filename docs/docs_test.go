// Package docs_test holds what is written for people against the code.
package docs_test

import (
	"flag"
	"os"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/migrations"
)

var update = flag.Bool("update", false, "write findings.md")

// TestFindingsPageIsUpToDate generates the page of all kinds of migrations.
func TestFindingsPageIsUpToDate(t *testing.T) {
	const page = "findings.md"
	want := findings.Reference("Findings")
	for _, kind := range migrations.All() {
		want += findings.Section(kind.Title, kind.Checks)
	}
	if *update {
		if err := os.WriteFile(page, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(page)
	if err != nil || string(have) != want {
		t.Errorf("%s is not up to date (%v); run the tests of this package with -update", page, err)
	}
}

// TestCodesAreUnique: a code means one thing, whichever migration finds it.
func TestCodesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, kind := range migrations.All() {
		for _, c := range kind.Checks {
			if seen[c.Code] {
				t.Errorf("code %s is used twice", c.Code)
			}
			seen[c.Code] = true
		}
	}
}

// TestRolesGrantExactlyTheRights compares the roles in deploy with what each kind of migration needs.
func TestRolesGrantExactlyTheRights(t *testing.T) {
	for _, kind := range migrations.All() {
		for file, rights := range kind.Roles {
			exactly(t, "../deploy/"+file, rights)
		}
	}
}

func exactly(t *testing.T, file string, rights []cluster.Right) {
	t.Helper()
	granted, needed := grantedBy(t, file), map[string]bool{}
	for _, r := range rights {
		if needed[r.String()] = true; !granted[r.String()] {
			t.Errorf("%s does not grant: %s", file, r)
		}
	}
	for r := range granted {
		if !needed[r] {
			t.Errorf("%s grants what is not needed: %s", file, r)
		}
	}
}

func grantedBy(t *testing.T, file string) map[string]bool {
	t.Helper()
	body, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	role := &rbacv1.ClusterRole{}
	if err := yaml.UnmarshalStrict(body, role); err != nil {
		t.Fatal(err)
	}
	granted := map[string]bool{}
	for _, rule := range role.Rules {
		for _, resource := range rule.Resources {
			name, sub, _ := strings.Cut(resource, "/")
			for _, verb := range rule.Verbs {
				r := cluster.Right{Verb: verb, Group: rule.APIGroups[0], Resource: name, Subresource: sub}.String()
				if granted[r] {
					t.Errorf("%s grants twice: %s", file, r)
				}
				granted[r] = true
			}
		}
	}
	return granted
}
