package migrationset

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/spec"
)

// SetMember is a Migration of a set, and what is left of its plan; nil, if it was not made.
type SetMember struct {
	Migration *v1alpha1.Migration
	Place     migration.SetPlace
	Plan      *engine.Plan
}

// Checks are those between the Migrations of a set. Each has its own beside these.
func Checks() []findings.Check[[]SetMember] {
	return findings.Group("Between",
		findings.Check[[]SetMember]{
			Code:     "RP6001",
			Severity: findings.Blocking,
			Run:      checkRanges,
			Claim:    "the new ranges of the set have no address in common",
			Why:      "an address that two things have answers for one of them only; each migration sees what is in use, and not what comes after it",
			Fix:      "choose ranges that have no address in common: replumb ranges proposes some",
		},
		findings.Check[[]SetMember]{
			Code:     "RP6002",
			Severity: findings.Warning,
			Run:      checkTwice,
			Claim:    "every object is changed by one migration of the set",
			Why:      "a workload that two of them restart or change is disturbed twice",
			Fix: "if you restart what has old Service addresses by moving pods alone, set spec.serviceCIDR.refresh.mode: Report: pods on the nodes' " +
				"network, and Jobs, then keep them until you end them; else nothing is to do",
		},
	)
}

type taken struct {
	migration.TakenRanges
	r netip.Prefix
}

func (m SetMember) takes() (all []taken) {
	if m.Place.Takes == nil {
		return nil
	}
	for _, of := range m.Place.Takes(&m.Migration.Spec) {
		for _, r := range spec.Prefixes(of.Ranges) {
			all = append(all, taken{of, r})
		}
	}
	return all
}

func checkRanges(all []SetMember) (out []findings.Result) {
	for i, b := range all {
		for _, a := range all[:i] {
			for _, mine := range b.takes() {
				for _, theirs := range a.takes() {
					if !mine.r.Overlaps(theirs.r) || theirs.Named && (mine.Named || mine.Holds) {
						continue
					}
					out = append(out, findings.Failed("Migration "+b.Migration.Name, "%s %s of migration %s overlaps %s %s of migration %s",
						mine.Field, mine.r, b.Migration.Name, theirs.Field, theirs.r, a.Migration.Name))
				}
			}
		}
	}
	return out
}

func checkTwice(all []SetMember) (out []findings.Result) {
	by := map[string][]string{}
	for _, m := range all {
		if m.Plan == nil {
			continue
		}
		objects, err := changed(m.Plan)
		if err != nil {
			out = append(
				out,
				findings.NotKnown("Migration "+m.Migration.Name, "the plan of migration %s cannot be shown: %v", m.Migration.Name, err),
			)
		}
		for _, o := range objects {
			by[o] = append(by[o], m.Migration.Name)
		}
	}
	for _, o := range slices.Sorted(maps.Keys(by)) {
		if names := by[o]; len(names) > 1 {
			out = append(out, findings.Failed(o, "%s is changed by migrations %s", lower(o), strings.Join(names, " and ")))
		}
	}
	return out
}

// changed are the existing objects of users that a plan changes or restarts, each once.
func changed(p *engine.Plan) (all []string, err error) {
	for _, phase := range p.Phases {
		if phase.Own {
			continue
		}
		for _, g := range phase.Groups {
			for _, s := range g.Steps {
				changes, err := engine.Preview(s)
				if err != nil {
					return nil, err
				}
				for _, c := range changes {
					if counts(s, c) && !slices.Contains(all, c.Object) {
						all = append(all, c.Object)
					}
				}
			}
		}
	}
	return all, nil
}

func counts(s engine.Step, c engine.Change) bool {
	role := engine.RoleOf(s)
	_, name, named := strings.Cut(c.Object, " ")
	return (role == engine.RoleMove || role == engine.RoleWrite) && c.Verb == "patch" && named &&
		!strings.HasPrefix(name, v1alpha1.SystemNamespace+"/") && !strings.HasPrefix(c.Object, "Migration ")
}

func lower(object string) string {
	kind, name, _ := strings.Cut(object, " ")
	return fmt.Sprintf("%s %s", strings.ToLower(kind), name)
}

// Ahead drops the finding that an earlier Migration of the set is not through: it will be by then,
// and is looked for again.
func Ahead(all findings.Findings, earlier []string) (left findings.Findings) {
	for _, f := range all {
		name, of := strings.CutPrefix(f.Object, "Migration ")
		if !f.Open() || !of || !slices.Contains(earlier, name) {
			left = append(left, f)
		}
	}
	return left
}
