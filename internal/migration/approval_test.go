package migration

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

func annotated(key, value string) *v1alpha1.Migration {
	m := &v1alpha1.Migration{}
	m.Name, m.Annotations = "m", map[string]string{key: value}
	return m
}

func TestApproved(t *testing.T) {
	word := FinishWord(annotated("", ""))
	for words, want := range map[string]Approvals{
		"":                           {},
		word:                         {Finish: true},
		"finish:earlier":             {},
		"finish:earlier " + word:     {Finish: true},
		" " + word + " , plan:abc\n": {Finish: true, Plans: []string{"abc"}},
		"plan:abc plan:def":          {Plans: []string{"abc", "def"}},
		"gate:api-servers=Done":      {Gates: []string{"api-servers=Done"}},
		"losses:0a1b," + word:        {Finish: true, Repaired: []string{"losses:0a1b"}},
	} {
		got, err := Approved(annotated(v1alpha1.AnnotationApprove, words))
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v", words, got, err)
		}
	}
	for _, words := range []string{"yes", "Finish", "finish", "finish:", "plan", "plan:", "gate:x", "gate:=x", "gate:x=", "losses:", "returned:", "finish,oops"} {
		got, err := Approved(annotated(v1alpha1.AnnotationApprove, words))
		if !errors.As(err, new(*ApprovalError)) || got.Finish {
			t.Errorf("%q: %+v, %v", words, got, err)
		}
	}
}

func TestApprove(t *testing.T) {
	m := &v1alpha1.Migration{}
	Approve(m)
	if m.Annotations != nil {
		t.Errorf("nothing was approved: %v", m.Annotations)
	}
	Approve(m, "plan:abc")
	Approve(m, "finish:1", "plan:abc", "")
	if got := m.Annotations[v1alpha1.AnnotationApprove]; got != "plan:abc,finish:1" {
		t.Errorf("got %q", got)
	}
	Approve(m, "plan:def")
	Approve(m, "finish:2")
	if got := m.Annotations[v1alpha1.AnnotationApprove]; got != "plan:def,finish:2" {
		t.Errorf("got %q", got)
	}
	if !Withdraw(m) || m.Annotations[v1alpha1.AnnotationApprove] != "plan:def" || Withdraw(m) {
		t.Errorf("got %v", m.Annotations)
	}
	m = annotated(v1alpha1.AnnotationApprove, "finish")
	if !Withdraw(m) || len(m.Annotations) > 0 {
		t.Errorf("got %v", m.Annotations)
	}
}

func TestAnswered(t *testing.T) {
	for name, tt := range map[string]struct {
		m    *v1alpha1.Migration
		want bool
	}{
		"none":         {nil, false},
		"annotation":   {annotated(v1alpha1.AnnotationAPIServers, "Repointed"), true},
		"other answer": {annotated(v1alpha1.AnnotationAPIServers, "Restored"), false},
		"approval":     {annotated(v1alpha1.AnnotationApprove, "gate:api-servers=Repointed"), true},
		"other gate":   {annotated(v1alpha1.AnnotationApprove, "gate:kubelets=Repointed"), false},
		"no approval":  {annotated(v1alpha1.AnnotationApprove, "gate:api-servers=Repointed,oops"), false},
	} {
		if got := Answered(tt.m, v1alpha1.AnnotationAPIServers, "Repointed"); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	if Answered(&v1alpha1.Migration{}, v1alpha1.AnnotationKubelets, "") {
		t.Error("nothing is an answer")
	}
}

// TestGates: what people have to do is kept from the first time that a step waits to the end of the
// step, or of the run.
func TestGates(t *testing.T) {
	g := &gates{}
	for i, tt := range []struct {
		event   engine.Event
		changed bool
		text    string
	}{
		{engine.Event{Kind: engine.StepWaiting, Step: "wait", Message: "Wait", Error: "not yet"}, false, ""},
		{engine.Event{Kind: engine.StepWaiting, Step: "gate/a", Message: "A", Error: "one is missing", Guide: "do it"}, true, "A: one is missing\ndo it"},
		{engine.Event{Kind: engine.StepWaiting, Step: "gate/a", Message: "A", Error: "none is there"}, true, "A: none is there\ndo it"},
		{engine.Event{Kind: engine.StepWaiting, Step: "gate/a", Message: "A", Error: "none is there"}, false, "A: none is there\ndo it"},
		{engine.Event{Kind: engine.StepDone, Step: "gate/b"}, false, "A: none is there\ndo it"},
		{engine.Event{Kind: engine.StepDone, Step: "gate/a"}, true, ""},
		{engine.Event{Kind: engine.StepWaiting, Step: "gate/b", Message: "B", Error: "x", Guide: "do b"}, true, "B: x\ndo b"},
		{engine.Event{Kind: engine.RunInterrupted}, true, ""},
		{engine.Event{Kind: engine.RunDone}, false, ""},
	} {
		if changed := g.observe(tt.event); changed != tt.changed || g.text() != tt.text {
			t.Errorf("%d: changed %t, %q", i, changed, g.text())
		}
	}
}

// TestStandings: no two conditions that exclude each other are true, and messages have an end.
func TestStandings(t *testing.T) {
	for _, first := range []Condition{AsDesired, UnderWay, AtRest, Stalled} {
		for _, then := range []Condition{AsDesired, UnderWay, AtRest, Stalled} {
			st := &v1alpha1.MigrationStatus{}
			first.Say(st, "First", "x")
			then.Say(st, "Then", strings.Repeat("ü", 2*maxMessage))
			held := 0
			for _, c := range []string{v1alpha1.ConditionReady, v1alpha1.ConditionReconciling, v1alpha1.ConditionStalled} {
				if meta.IsStatusConditionTrue(st.Conditions, c) {
					held++
				}
			}
			ready := meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionReady)
			if held > 1 || (held == 0) != (then == AtRest) || ready.Reason != "Then" || len([]rune(ready.Message)) != maxMessage {
				t.Errorf("%s, then %s: %+v", first, then, st.Conditions)
			}
		}
	}
}
