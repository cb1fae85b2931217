package migrationset

import (
	"errors"
	"strings"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/spec"
)

// read makes Migrations of "name: spec" each, where the spec is YAML in one line.
func read(t testing.TB, texts ...string) (all []*v1alpha1.Migration) {
	t.Helper()
	for _, text := range texts {
		name, of, _ := strings.Cut(text, ": ")
		m, err := spec.Parse(
			[]byte("apiVersion: replumb.dev/v1alpha1\nkind: Migration\nmetadata: {name: " + name + "}\nspec: " + of + "\n"),
		)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, m)
	}
	return all
}

const (
	services = "s: {serviceCIDR: {to: [172.24.0.0/16]}}"
	pods     = "p: {podCIDR: {to: [10.245.0.0/16]}}"
	nodes    = "w: {nodes: {old: {cidrs: [192.0.2.0/24]}, new: {cidrs: [198.51.100.0/24]}}}"
	mirror   = "m: {mirror: {target: {context: b}}}"
	cni      = "c: {cni: {from: flannel, to: calico, manifests: [calico.yaml]}}"
)

// TestOrder: however they stand in the file, they move in one order; what cannot be one set is
// refused with all that is wrong.
func TestOrder(t *testing.T) {
	for name, tt := range map[string]struct {
		given []string
		want  string // names in order, or what the error has
	}{
		"as it is":       {[]string{services, pods, nodes}, "s,p,w"},
		"turned around":  {[]string{nodes, pods, services}, "s,p,w"},
		"two of them":    {[]string{nodes, services}, "s,w"},
		"two other":      {[]string{nodes, pods}, "p,w"},
		"a mirror":       {[]string{services, mirror}, "m: spec.mirror: cannot be in one set with s: it copies the cluster to another one"},
		"a network":      {[]string{cni, pods}, "c: spec.cni: cannot be in one set with p: it replaces the network"},
		"one kind twice": {[]string{services, "z" + services}, "zs: spec.serviceCIDR: moves Services, as s does"},
		"one name twice": {[]string{services, "s" + pods[1:]}, "metadata.name: two Migrations are called s"},
		"all of it":      {[]string{services, "z" + services, mirror}, "the Migration has 2 errors"},
	} {
		given := read(t, tt.given...)
		got, err := Order(migrations.All().Describe, given)
		if err != nil {
			if code, _ := fault.ExitCode(
				err,
			); code != fault.ExitUsage || fault.Advice(err) == "" ||
				!strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v (exit %d, hint %q), want %q", name, err, code, fault.Advice(err), tt.want)
			}
			continue
		}
		if is := strings.Join(Names(got), ","); is != tt.want {
			t.Errorf("%s: %s, want %s", name, is, tt.want)
		}
		for _, m := range got {
			if of := m.Annotations[v1alpha1.AnnotationSet]; of != tt.want {
				t.Errorf("%s: migration %s is of the set %q", name, m.Name, of)
			}
		}
	}
}

func TestSpared(t *testing.T) {
	for name, tt := range map[string]struct {
		phases string // of the Migrations a, b and c
		want   string // who is spared
	}{
		"nothing yet":          {"- - -", ""},
		"the first goes on":    {"Applying - -", ""},
		"the first has moved":  {"Moved - -", ""},
		"the second goes on":   {"Moved Applying -", "a"},
		"the second is new":    {"Moved Recorded -", "a"},
		"the second is back":   {"Moved RolledBack -", ""},
		"all have moved":       {"Moved Moved Moved", "ab"}, //nolint:dupword // one for each of three
		"the first is over":    {"Finished Moved -", "a"},
		"all are over":         {"Finished Finished Finished", "abc"}, //nolint:dupword // one for each of three
		"the first never was":  {"- Moved -", ""},
		"the first stands now": {"Applying Moved -", ""},
	} {
		var all []MemberProgress
		for i, phase := range strings.Fields(tt.phases) {
			s := MemberProgress{Name: string(rune('a' + i)), Phase: v1alpha1.Phase(strings.TrimPrefix(phase, "-"))}
			if phase == "Recorded" { // and not through with its first plan
				s.Phase, s.Applied = "", true
			}
			all = append(all, s)
		}
		got := ""
		for i := range all {
			if Spared(all, i) != "" {
				got += all[i].Name
			}
		}
		if got != tt.want {
			t.Errorf("%s: spared %q, want %q", name, got, tt.want)
		}
	}
}

// TestEveryCheckFiresAndPasses: each has something that it finds, and something that it lets pass.
func TestEveryCheckFiresAndPasses(t *testing.T) {
	write := func(object, verb string) *engine.Plan {
		return &engine.Plan{Name: "p", Phases: []engine.Phase{{Name: "move", Groups: []engine.Group{{Parallel: 1, Steps: []engine.Step{
			&engine.Write{
				Name:    "w",
				Changes: func() ([]engine.Change, error) { return []engine.Change{{Verb: verb, Object: object}}, nil },
			},
		}}}}}}
	}
	broken := &engine.Plan{Name: "p", Phases: []engine.Phase{{Name: "move", Groups: []engine.Group{{Parallel: 1, Steps: []engine.Step{
		&engine.Write{Name: "w", Changes: func() ([]engine.Change, error) { return nil, errors.New("no") }},
	}}}}}}
	for name, tt := range map[string]struct {
		given []string
		plans []*engine.Plan
		want  string // code and message of what did not pass
	}{
		"apart":             {[]string{services, pods, nodes}, nil, ""},
		"pods in Services":  {[]string{services, "p: {podCIDR: {to: [172.24.128.0/17]}}"}, nil, "RP6001 spec.podCIDR.to 172.24.128.0/17 of migration p overlaps spec.serviceCIDR.to 172.24.0.0/16 of migration s"},
		"nodes in pods":     {[]string{pods, "w: {nodes: {old: {cidrs: [192.0.2.0/24]}, new: {cidrs: [10.245.7.0/24]}}}"}, nil, "RP6001 spec.nodes.new.cidrs 10.245.7.0/24 of migration w overlaps spec.podCIDR.to 10.245.0.0/16 of migration p"},
		"nodes in Services": {[]string{services, "w: {nodes: {old: {cidrs: [192.0.2.0/24]}, new: {cidrs: [172.16.0.0/12]}}}"}, nil, "RP6001 spec.nodes.new.cidrs 172.16.0.0/12 of migration w overlaps spec.serviceCIDR.to 172.24.0.0/16 of migration s"},
		"pods in a network": {[]string{"s: {serviceCIDR: {to: [172.24.0.0/16], networks: [10.245.9.0/24]}}", pods}, nil, "RP6001 spec.podCIDR.to 10.245.0.0/16 of migration p overlaps spec.serviceCIDR.networks 10.245.9.0/24 of migration s"},
		"Services in one":   {[]string{services, "p: {podCIDR: {to: [10.245.0.0/16], networks: [172.24.1.0/24]}}"}, nil, "RP6001 spec.podCIDR.networks 172.24.1.0/24 of migration p overlaps spec.serviceCIDR.to 172.24.0.0/16 of migration s"},
		"one network named twice": {
			[]string{"s: {serviceCIDR: {to: [172.24.0.0/16], networks: [10.9.0.0/24]}}", "p: {podCIDR: {to: [10.245.0.0/16], networks: [10.9.0.0/24]}}"}, nil, "",
		},
		"nodes in a network": {[]string{"s: {serviceCIDR: {to: [172.24.0.0/16], networks: [198.51.100.0/24]}}", nodes}, nil, ""},

		"one object twice": {[]string{services, pods}, []*engine.Plan{write("Deployment shop/web", "patch"), write("Deployment shop/web", "patch")}, "RP6002 deployment shop/web is changed by migrations s and p"},
		"two objects":      {[]string{services, pods}, []*engine.Plan{write("Deployment shop/web", "patch"), write("Deployment shop/api", "patch")}, ""},
		"made by both":     {[]string{services, pods}, []*engine.Plan{write("Namespace a", "create"), write("Namespace a", "create")}, ""},
		"replumb's own":    {[]string{services, pods}, []*engine.Plan{write("DaemonSet replumb-system/agent", "patch"), write("DaemonSet replumb-system/agent", "patch")}, ""},
		"one is through":   {[]string{services, pods}, []*engine.Plan{nil, write("Deployment shop/api", "patch")}, ""},
		"no preview":       {[]string{services, pods}, []*engine.Plan{broken, nil}, "RP6002 the plan of migration s cannot be shown: previewing w: no"},
	} {
		var all []SetMember
		for i, m := range read(t, tt.given...) {
			of := SetMember{Migration: m, Place: migrations.All().Of(m).Set}
			if tt.plans != nil {
				of.Plan = tt.plans[i]
			}
			all = append(all, of)
		}
		var got []string
		for _, f := range findings.Run(Checks(), all) {
			if f.Open() {
				got = append(got, f.Code+" "+f.Message)
			}
		}
		if is := strings.Join(got, "\n"); is != tt.want {
			t.Errorf("%s:\n%s\nwant\n%s", name, is, tt.want)
		}
	}
}

// TestAhead: that an earlier one of the set is under way says nothing of the next one's turn;
// anything else counts.
func TestAhead(t *testing.T) {
	found := findings.Findings{
		{Code: "RP2006", Severity: findings.Blocking, Outcome: findings.Fail, Object: "Migration s"},
		{Code: "RP2006", Severity: findings.Blocking, Outcome: findings.Fail, Object: "Migration other"},
		{Code: "RP2001", Severity: findings.Blocking, Outcome: findings.Pass},
	}
	if left := Ahead(found, []string{"s"}); len(left) != 2 || left[0].Object != "Migration other" {
		t.Errorf("left: %+v", left)
	}
	if left := Ahead(found, nil); len(left) != 3 {
		t.Errorf("of a first one: %+v", left)
	}
}
