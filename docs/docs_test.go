// Package docs_test holds what is written for people against the code.
package docs_test

import (
	"flag"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/yaml"

	"github.com/replumb/replumb/hack/manual/page"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
	"github.com/replumb/replumb/internal/kube/rbac"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrationset"
)

var update = flag.Bool("update", false, "write findings.md, rights.md, and the roles in deploy")

// TestFindingsPageIsUpToDate generates the page of all kinds of migrations.
func TestFindingsPageIsUpToDate(t *testing.T) {
	want := findings.Reference("Findings") + findings.Contents(slices.Concat(everyCheck()...))
	for _, kind := range append(migrations.All(), migrations.Shared()) {
		want += findings.Section(kind.Title, kind.Checks)
	}
	want += findings.Section("Several migrations", findings.Describe(migrationset.Checks()))
	same(t, "findings.md", page.Wrapped(want))
}

// everyCheck lists those of each kind of migrations, and those between migrations.
func everyCheck() (all [][]findings.Description) {
	for _, kind := range append(migrations.All(), migrations.Shared()) {
		all = append(all, kind.Checks)
	}
	return append(all, findings.Describe(migrationset.Checks()))
}

// TestCodesAreUnique: a code means one thing, whichever migration finds it.
func TestCodesAreUnique(t *testing.T) {
	seen := map[string]bool{}
	for _, checks := range everyCheck() {
		for _, c := range checks {
			if seen[c.Code] {
				t.Errorf("code %s is used twice", c.Code)
			}
			seen[c.Code] = true
		}
	}
}

// negation begins a claim that must be read twice: "no X is seen that cannot Y".
var negation = regexp.MustCompile(`(?i)^(no|no one|nothing|never|not|none) |\bno .* (not|cannot|no)\b`)

// TestClaimsArePositive: who is paged reads what holds, not what is absent.
func TestClaimsArePositive(t *testing.T) {
	const longest = 100 // characters, which is one line beside a code
	for _, checks := range everyCheck() {
		for _, c := range checks {
			if negation.MatchString(c.Claim) {
				t.Errorf("%s claims what is absent: %s", c.Code, c.Claim)
			}
			if len(c.Claim) > longest {
				t.Errorf("%s has a claim of %d characters, more than %d: %s", c.Code, len(c.Claim), longest, c.Claim)
			}
		}
	}
	for _, bad := range []string{"no kube-proxy is seen that cannot tell pods from others", "nothing is left"} {
		if !negation.MatchString(bad) {
			t.Errorf("%q passes", bad)
		}
	}
}

// TestRolesAreUpToDate generates the roles in deploy, and the page that has them as tables, from the lists in the code.
func TestRolesAreUpToDate(t *testing.T) {
	rights := rbac.Page()
	for _, kind := range append(migrations.All(), migrations.Shared()) {
		rights += rbac.Section(kind.Does, kind.Roles)
		files := map[string]access.Roles{}
		for _, role := range kind.Roles {
			files[role.File] = append(files[role.File], role)
		}
		for file, roles := range files {
			same(t, "../deploy/"+file, rbac.File(kind.Does, kind.Command, roles))
		}
	}
	same(t, "rights.md", page.Wrapped(rights))
	same(t, "../deploy/rbac-operator.yaml", rbac.OperatorFile(migrations.OperatorRole(), migrations.OperatorLeaseRole()))
}

// TestOperatorHasWhatAllKindsTake: it has every right that a kind of migrations needs, and none that no one needs.
func TestOperatorHasWhatAllKindsTake(t *testing.T) {
	role := migrations.OperatorRole()
	has := map[access.Right]bool{}
	for _, r := range role.Rights() {
		has[r] = true
	}
	needed := map[access.Right]bool{}
	for _, kind := range migrations.All() {
		for _, one := range kind.Roles {
			for _, r := range one.Rights() {
				if slices.Contains([]access.Purpose{access.WithoutAgents, access.BehindCilium, access.KubeadmEtcd}, one.Purpose) {
					continue
				}
				needed[r] = true
				if anyName, anywhere := r, r; !has[r] {
					anyName.Name, anywhere.Namespace = "", ""
					both := anyName
					both.Namespace = ""
					if !has[anyName] && !has[anywhere] && !has[both] {
						t.Errorf("the operator may not do what %s may: %s", one.Name, r)
					}
				}
			}
		}
	}
	own := 0
	for r := range has {
		if r.Subresource == "proxy" && r.Resource == "nodes" {
			t.Errorf("it is root on every node: %s", r)
		}
		if !needed[r] {
			own++
		}
	}
	if own > 6 { // watch and patch of Migrations, and the Lease of the leader
		t.Errorf("it has %d rights that no kind needs", own)
	}
}

// same holds a file against what it should be.
func same(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil || string(have) != want {
		t.Errorf("%s is not up to date (%v); run the tests of this package with -update", file, err)
	}
}

// TestRolesGrantExactlyTheRights reads what was generated as Kubernetes does.
func TestRolesGrantExactlyTheRights(t *testing.T) {
	kinds := append(
		migrations.All(),
		migrations.Shared(),
		migrations.Kind{Description: migration.Description{Roles: access.Roles{migrations.OperatorRole(), migrations.OperatorLeaseRole()}}},
	)
	for _, kind := range kinds {
		for _, role := range kind.Roles {
			granted := map[access.Right]bool{}
			for namespace, rules := range rulesIn(t, rbac.Manifest(role), role.Name) {
				for _, r := range rightsOf(rules) {
					r.Namespace = namespace
					if granted[r] {
						t.Errorf("%s grants twice: %s", role.Name, r)
					}
					granted[r] = true
				}
			}
			for _, r := range role.Rights() {
				if !granted[r] {
					t.Errorf("%s does not grant: %s", role.Name, r)
				}
				delete(granted, r)
			}
			for r := range granted {
				t.Errorf("%s grants what is not needed: %s", role.Name, r)
			}
		}
	}
}

// rulesIn are the rules of a role, by namespace.
func rulesIn(t *testing.T, manifests, name string) map[string][]rbacv1.PolicyRule {
	t.Helper()
	all := map[string][]rbacv1.PolicyRule{}
	for doc := range strings.SplitSeq(manifests, "---\n") {
		if doc == "" {
			continue
		}
		role := &rbacv1.Role{} // a ClusterRole has no other fields
		if err := yaml.UnmarshalStrict([]byte(doc), role); err != nil {
			t.Fatal(err)
		}
		if role.Name != name || (role.Kind == "Role") != (role.Namespace != "") {
			t.Errorf("%s %s/%s in the manifests of %s", role.Kind, role.Namespace, role.Name, name)
		}
		all[role.Namespace] = role.Rules
	}
	return all
}

func rightsOf(rules []rbacv1.PolicyRule) []access.Right {
	var all []access.Right
	for _, rule := range rules {
		for _, verb := range rule.Verbs {
			for _, url := range rule.NonResourceURLs {
				all = append(all, access.Right{Verb: verb, URL: url})
			}
			for _, resource := range rule.Resources {
				of, sub, _ := strings.Cut(resource, "/")
				for _, name := range append(rule.ResourceNames, "")[:max(1, len(rule.ResourceNames))] {
					all = append(all, access.Right{Verb: verb, Group: rule.APIGroups[0], Resource: of, Subresource: sub, Name: name})
				}
			}
		}
	}
	return all
}

// TestViewOnlyLooks: who has a role to view can change nothing.
func TestViewOnlyLooks(t *testing.T) {
	for _, kind := range migrations.All() {
		for _, r := range kind.Roles.Of(access.View).Rights() {
			if r.Verb != "get" && r.Verb != "list" && r.Verb != "watch" || r.Subresource == "proxy" || r.Resource == "*" {
				t.Errorf("%s: %s", kind.Command, r)
			}
		}
	}
}

// TestRightsThatAreMissingAreFound: the section about them names the finding of every kind, and no
// other.
func TestRightsThatAreMissingAreFound(t *testing.T) {
	section := sectionsOf(t, "troubleshooting.md")["rights-are-missing"]
	for _, kind := range append(migrations.All(), migrations.Shared()) {
		for _, c := range kind.Checks {
			ofRights := strings.HasPrefix(c.Claim, "the user has every right")
			if ofRights != strings.Contains(section, c.Code) {
				t.Errorf("%s (%s) is named: %t", c.Code, c.Claim, !ofRights)
			}
		}
	}
}
