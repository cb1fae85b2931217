package migrate

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
	"github.com/replumb/replumb/internal/migration"
	"github.com/replumb/replumb/internal/migrations"
	"github.com/replumb/replumb/internal/migrationset"
	"github.com/replumb/replumb/internal/operator/controller"
	"github.com/replumb/replumb/internal/reporting/htmlreport"
	"github.com/replumb/replumb/internal/reporting/progress"
)

// cableJob is a job of a kind of this test's own.
type cableJob struct {
	migrations.Job
	m *v1alpha1.Migration
}

func (j cableJob) About() migration.About {
	return migration.About{Name: j.m.Name, Migration: j.m, Return: "plug the old cables in"}
}

func (cableJob) Silence() {}

func (cableJob) Inspect(context.Context) (migration.Inspection, error) {
	return migration.Inspection{
		Whole: &engine.Plan{Name: "c"}, Outstanding: &engine.Plan{Name: "c"},
		Details: migration.Details{Summary: "7 cables to lay", Text: []migration.TextBlock{{Lines: []string{"laid by hand"}}}},
	}, nil
}

func (cableJob) Status(context.Context) (migration.StatusDocument, error) {
	return migration.StatusDocument{
		Body:   struct{ Cables []string }{[]string{"red"}},
		Counts: v1alpha1.Counts{Total: 7, Moved: 1}, Summary: "1 of 7 cables laid", Text: []migration.TextBlock{{Head: []string{"CABLE"}, Rows: [][]string{{"red"}}}},
	}, nil
}

// sixKinds is the table with one more line: of Migrations that name none of the others.
func sixKinds() migrations.Kinds {
	return append(migrations.All(), migrations.Kind{
		Description: migration.Description{
			Words: migration.Words{Counted: "cables", Return: "plug the old cables in"},
			Set:   migration.SetPlace{Order: 2, Moves: "cables"},
			Report: func(*v1alpha1.Migration) migration.Report {
				return migration.Report{Kind: "Cables", Subject: "The cables", Did: "were laid"}
			},
		},
		NewJob: func(_ migrations.Deps, m *v1alpha1.Migration) (migrations.Job, error) { return cableJob{m: m}, nil },
	})
}

// TestSixthKind: a line in the table is all that a kind takes to be spoken of in its own words,
// wherever there are words about kinds.
func TestSixthKind(t *testing.T) {
	m := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
	m.Status = v1alpha1.MigrationStatus{Phase: v1alpha1.PhaseApplying, Counts: v1alpha1.Counts{Total: 7, Moved: 1}}
	app := command.New("replumb", nil, &strings.Builder{}, &strings.Builder{}, command.Build{})
	app.Kinds = sixKinds()
	a := &source{App: app}
	j, err := a.newJob(nil, m, "")
	if err != nil {
		t.Fatal(err)
	}
	says := map[string]string{}

	found, err := j.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	doc := documentOf(j, found, command.Standalone)
	var status strings.Builder
	if err := showStatus(&status, doc, everyRow, command.Standalone); err != nil {
		t.Fatal(err)
	}
	says["status"] = status.String()
	body, err := json.Marshal(doc)
	if err != nil || !strings.Contains(string(body), `"Cables":["red"]`) {
		t.Errorf("the document is %s, %v", body, err)
	}

	look, err := j.Inspect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var plan strings.Builder
	if err := writeText(&plan, look.Text, everyRow, command.Standalone); err != nil {
		t.Fatal(err)
	}
	says["plan"] = plan.String() + look.Summary

	says["view"] = strings.Join(a.view(progress.Input{Migration: m, Counts: found.Counts, Holder: "x", Now: time.Unix(1, 0)}).Lines(progress.Style{}), "\n")
	says["report"] = htmlreport.Build(htmlreport.Input{Migration: m, Words: a.Kinds.Of(m).Report(m), Now: time.Unix(1, 0)}).Summary
	says["set"] = member{set: a.Kinds.Of(m).Set}.moves()

	final := m.DeepCopy()
	final.Status.PointOfNoReturnPassed = true
	says["way back"] = fault.Advice(migration.Reversible(final, j.About().Return))
	final.Spec.Desired = v1alpha1.DesiredRolledBack
	says["operator"] = controller.Decide(controller.Scene{Migration: final, Kinds: a.Kinds, Now: time.Unix(1, 0)}).Message

	for place, want := range map[string]string{
		"status": "1 of 7 cables laid", "plan": "7 cables to lay", "view": "1 of 7 cables", "report": "The cables were laid",
		"set": "cables", "way back": "plug the old cables in", "operator": "hint: plug the old cables in",
	} {
		if got := says[place]; !strings.Contains(got, want) || strings.Contains(strings.ToLower(got), "service") {
			t.Errorf("%s says %q, want %q", place, got, want)
		}
	}

	services := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: v1alpha1.MigrationSpec{ServiceCIDR: &v1alpha1.ServiceCIDRSpec{}}}
	nodes := &v1alpha1.Migration{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Spec: v1alpha1.MigrationSpec{Nodes: &v1alpha1.NodesSpec{}}}
	ordered, err := migrationset.Order(a.Kinds.Describe, []*v1alpha1.Migration{nodes, m, services})
	if err != nil || strings.Join(migrationset.Names(ordered), ",") != "s,c,n" {
		t.Errorf("the order is %v, %v", migrationset.Names(ordered), err)
	}
	if _, err := migrations.All().NewJob(migrations.Deps{}, m); err == nil {
		t.Error("a table without its kind makes a job of it all the same")
	}
}
