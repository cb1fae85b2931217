package lossguard

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// TestNodeThatLearnsLateIsNamed: a loss of the Service that rolls is put down to its node only if
// nothing else explains it.
func TestNodeThatLearnsLateIsNamed(t *testing.T) {
	const single, stays = "pod/" + v1alpha1.ProbeSingleOld, "pod/" + v1alpha1.ProbeName
	lost := metav1.NewMicroTime(begin.Add(20 * time.Second))
	earlier := metav1.NewMicroTime(begin)
	for name, test := range map[string]struct {
		// a and b are the probes that fail on two nodes, at a time.
		a, b map[string]metav1.MicroTime
		late bool
		// rolled is for how long before the one pod was replaced; negative, if it was not.
		rolled time.Duration
	}{
		"late":                   {map[string]metav1.MicroTime{single: lost}, nil, true, 0},
		"another loss before":    {map[string]metav1.MicroTime{single: lost}, map[string]metav1.MicroTime{single: earlier}, true, 0},
		"nothing has rolled":     {map[string]metav1.MicroTime{single: lost}, nil, false, -1},
		"rolled long ago":        {map[string]metav1.MicroTime{single: lost}, nil, false, time.Hour},
		"no server":              {map[string]metav1.MicroTime{single: lost}, map[string]metav1.MicroTime{single: lost}, false, 0},
		"no network":             {map[string]metav1.MicroTime{single: lost, stays: lost}, nil, false, 0},
		"not the one that rolls": {map[string]metav1.MicroTime{stays: lost}, nil, false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			tally := newTally()
			tally.Begin()
			report := func(node string, sequence int64, failed map[string]metav1.MicroTime) []v1alpha1.Loss {
				now := begin.Add(time.Duration(sequence) * 10 * time.Second)
				r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: node}}
				r.Status.Agents = []v1alpha1.AgentReport{{
					Origin: v1alpha1.FromPod, Instance: node, Sequence: sequence, ReportedAt: metav1.NewMicroTime(now),
				}}
				for _, name := range []string{single, stays} {
					p := v1alpha1.ProbeReport{
						Name: name, Origin: v1alpha1.FromPod, Instance: node, Sent: 50 * sequence,
						Recent: []v1alpha1.ProbeWindow{{Start: now.Unix() - 10, End: now.Unix(), Sent: 50}},
					}
					if at, ok := failed[name]; ok {
						p.Failed, p.Losses = 3, []v1alpha1.LossWindow{{Start: at, End: at, Failed: 3, Error: "connection refused"}}
					}
					r.Status.Probes = append(r.Status.Probes, p)
				}
				return tally.Take(r, now)
			}
			for sequence := range int64(2) {
				report("a", sequence+1, nil)
				report("b", sequence+1, nil)
			}
			if test.rolled >= 0 {
				tally.Rolled(begin.Add(-test.rolled))
			}
			report("b", 3, test.b)
			losses := report("a", 3, test.a)
			if len(losses) != len(test.a) {
				t.Fatalf("losses are %+v", losses)
			}
			for _, l := range losses {
				if got := strings.Contains(Describe(&l), "node a learns of endpoints late"); got != test.late {
					t.Errorf("%s", Describe(&l))
				}
			}
		})
	}
}
