package migrationtest

import (
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/kube/access"
)

// Access is what the authorizer answers a user who has some roles but for those rights, given as
// texts.
func Access(t testing.TB, roles access.Roles, denied ...string) []access.Answer {
	t.Helper()
	var all []access.Answer
	missing := slices.Clone(denied)
	for _, r := range roles.Rights() {
		role := roles.Granting(r)
		allowed := !slices.Contains(denied, r.String())
		missing = slices.DeleteFunc(missing, func(text string) bool { return text == r.String() })
		all = append(all, access.Answer{Right: r, Allowed: allowed, Role: role.Name, Optional: !roles.Needs(r)})
	}
	if len(missing) > 0 {
		t.Fatalf("no role has %q", missing)
	}
	return all
}

// Says reports whether there is a finding of a check that says a text.
func Says(all findings.Findings, code, text string) bool {
	return slices.ContainsFunc(all, func(f findings.Finding) bool { return f.Code == code && strings.Contains(f.Message, text) })
}
