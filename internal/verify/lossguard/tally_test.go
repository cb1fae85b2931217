package lossguard

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

var begin = time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)

// script plays one node's agents, a report every two seconds.
type script struct {
	*testing.T
	tally    *Tally
	now      time.Time
	instance string
	sequence int64
	sent     int64
	failed   int64
	missed   int64
	window   int64
	// late is how many answers of the next report are late, lates those of all.
	late   int
	lates  int64
	report *v1alpha1.NodeReport
}

func newScript(t *testing.T) *script {
	s := &script{T: t, tally: newTally(), now: begin, instance: "a", window: begin.Unix()}
	s.tally.Begin()
	return s
}

// TestReplacedAgents: what agents lose while replumb replaces them does not count, however calm
// they were before.
func TestReplacedAgents(t *testing.T) {
	s := newScript(t)
	s.tally = newTally()
	for range 3 {
		s.tick(0, true)
	}
	if fresh := s.tick(2, true); len(fresh) > 0 || s.tally.Failed != 0 {
		t.Errorf("counts before all are there: %v", fresh)
	}
	s.tally.Begin()
	for range 3 {
		s.tick(0, true)
	}
	if fresh := s.tick(2, true); len(fresh) == 0 || s.tally.Failed != 4 {
		t.Errorf("counts %d afterwards: %v", s.tally.Failed, fresh)
	}
}

// tick makes the next report: how many of ten requests failed since the last one, in a window that
// is over or not.
func (s *script) tick(failed int, over bool, change ...func(*v1alpha1.NodeReport)) []v1alpha1.Loss {
	s.now = s.now.Add(2 * time.Second)
	s.sequence++
	s.sent += 10
	s.failed += int64(failed)
	s.lates += int64(s.late)
	r := &v1alpha1.NodeReport{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	var recent []v1alpha1.ProbeWindow
	if s.report != nil {
		recent = s.report.Status.Probes[0].Recent
	}
	w := v1alpha1.ProbeWindow{Start: s.window, End: s.window + 2, Sent: 10, Late: s.late}
	s.window += 2
	if over {
		w.Failed = failed
	}
	recent = append(recent, w)
	for _, origin := range []v1alpha1.ProbeOrigin{v1alpha1.FromHost, v1alpha1.FromPod} {
		r.Status.Agents = append(r.Status.Agents, v1alpha1.AgentReport{
			Origin: origin, Instance: s.instance, Sequence: s.sequence, ReportedAt: metav1.NewMicroTime(s.now),
		})
		p := v1alpha1.ProbeReport{
			Name: string(origin) + "/name", Origin: origin, Instance: s.instance, Address: "probe:80", Sent: s.sent, Failed: s.failed,
			Late: s.lates, NotMeasured: s.missed, Recent: recent,
		}
		if s.failed > 0 {
			p.Losses = []v1alpha1.LossWindow{
				{Start: metav1.NewMicroTime(s.now), End: metav1.NewMicroTime(s.now), Failed: failed, Error: "refused"},
			}
		}
		r.Status.Probes = append(r.Status.Probes, p)
	}
	for _, c := range change {
		c(r)
	}
	s.report = r
	return s.tally.Take(r, s.now)
}

func (s *script) counted(sent, failed int64) {
	s.Helper()
	if s.tally.Sent != sent || s.tally.Failed != failed {
		s.Errorf("counted %d sent, %d failed, want %d, %d", s.tally.Sent, s.tally.Failed, sent, failed)
	}
}

func (s *script) unsettled(want int) {
	s.Helper()
	if got := s.tally.Unarmed([]Agent{{"n", v1alpha1.FromHost}, {"n", v1alpha1.FromPod}}); len(got) != want {
		s.Errorf("unsettled: %q, want %d", got, want)
	}
}

func TestLossesCountFromWhenAllIsAnswered(t *testing.T) {
	s := newScript(t)
	s.unsettled(2)
	s.tick(4, true)
	s.unsettled(2)
	s.tick(0, true)
	s.unsettled(2) // for two seconds only
	s.tick(0, true)
	s.unsettled(0)
	s.counted(0, 0)
	if fresh := s.tick(0, true); len(fresh) != 0 {
		t.Errorf("new losses: %v", fresh)
	}
	s.counted(20, 0)
	if fresh := s.tick(3, false); len(fresh) != 2 || fresh[0].Node != "n" || fresh[0].Error != "refused" {
		t.Errorf("new losses: %v", fresh)
	}
	s.counted(40, 6)
	s.tick(0, true)
	s.counted(60, 6)
}

// TestAClockThatIsSetBackHidesNoLoss: the node's clock goes back by a minute once losses count.
func TestAClockThatIsSetBackHidesNoLoss(t *testing.T) {
	s := newScript(t)
	s.tick(0, true)
	s.tick(0, true)
	s.tick(0, true)
	s.unsettled(0)
	s.now = s.now.Add(-time.Minute)
	if fresh := s.tick(3, false); len(fresh) != 2 {
		t.Errorf("new losses: %v", fresh)
	}
}

func TestAFailureThatIsInNoWindowYetKeepsFromArming(t *testing.T) {
	s := newScript(t)
	s.tick(0, true)
	s.tick(2, false) // the windows show nothing of it
	s.unsettled(2)
	s.tick(0, true)
	s.unsettled(0)
	s.counted(0, 0)
}

func TestOneReportDoesNotArm(t *testing.T) {
	s := newScript(t)
	s.window -= 10
	s.tick(0, true, func(r *v1alpha1.NodeReport) {
		for i := range r.Status.Probes {
			r.Status.Probes[i].Recent[0].End += 8
		}
	})
	s.unsettled(2)
}

func TestANewInstanceCountsFromZero(t *testing.T) {
	s := newScript(t)
	for range 4 {
		s.tick(0, true)
	}
	s.counted(40, 0)
	s.instance, s.sent, s.failed = "b", 0, 0
	s.tick(5, true) // it begins while something is amiss
	s.unsettled(2)
	s.counted(40, 0)
	s.tick(0, true)
	s.tick(0, true)
	s.unsettled(0)
	s.tick(1, true)
	s.counted(60, 2)
}

func TestAProbeThatComesLaterCounts(t *testing.T) {
	s := newScript(t)
	for range 3 {
		s.tick(0, true)
	}
	s.unsettled(0)
	fresh := s.tick(0, true, func(r *v1alpha1.NodeReport) {
		r.Status.Probes = append(r.Status.Probes, v1alpha1.ProbeReport{
			Name: "host/new-address", Origin: v1alpha1.FromHost, Instance: "a", Sent: 4, Failed: 1,
		})
	})
	if len(fresh) != 1 || fresh[0].Probe != "host/new-address" {
		t.Errorf("new losses: %v", fresh)
	}
}

func TestFailedConnects(t *testing.T) {
	s := newScript(t)
	for range 3 {
		s.tick(0, true)
	}
	broken := func(r *v1alpha1.NodeReport) {
		r.Status.Connects = &v1alpha1.ConnectReport{Instance: "a", Connected: 2, Failed: []v1alpha1.FailedConnect{
			{Service: "shop/cart", Address: "172.24.0.5:80", At: metav1.NewMicroTime(begin), Error: "connect-timeout"},
		}}
	}
	if fresh := s.tick(0, true, broken); len(fresh) != 1 || fresh[0].Probe != "shop/cart" {
		t.Errorf("new losses: %v", fresh)
	}
	if fresh := s.tick(0, true, broken); len(fresh) != 0 {
		t.Errorf("reported twice: %v", fresh)
	}
	if got := s.tally.Unconnected(2, []string{"n"}); len(got) != 0 {
		t.Errorf("behind: %v", got)
	}
	if got := s.tally.Unconnected(3, []string{"n", "m"}); fmt.Sprint(got) != "[n m]" {
		t.Errorf("behind: %v", got)
	}
}

func TestSilence(t *testing.T) {
	s := newScript(t)
	s.tick(0, true)
	at := s.now
	if got := s.tally.Silence(Agent{"n", v1alpha1.FromPod}, begin, at.Add(time.Minute)); got != time.Minute {
		t.Errorf("silent for %s", got)
	}
	s.sequence-- // the same report again is no sign of life
	s.now = at
	s.tick(0, true)
	if got := s.tally.Silence(Agent{"n", v1alpha1.FromPod}, begin, at.Add(time.Minute)); got != time.Minute {
		t.Errorf("silent for %s", got)
	}
	if got := s.tally.Silence(Agent{"never", v1alpha1.FromPod}, at, at.Add(time.Second)); got != time.Second {
		t.Errorf("silent for %s", got)
	}
}

// TestUnheard: only a report that came since counts, and not one that says that its agent is blind.
func TestUnheard(t *testing.T) {
	s := newScript(t)
	both := []Agent{{"n", v1alpha1.FromHost}, {"n", v1alpha1.FromPod}}
	unheard := func(since time.Time, want int) {
		t.Helper()
		if got := s.tally.Unheard(since, both); len(got) != want {
			t.Errorf("not heard: %v, want %d", got, want)
		}
	}
	unheard(begin, 2)
	s.tick(0, true)
	unheard(begin, 0)
	since := s.now
	unheard(since, 2)
	s.sequence-- // the same report again
	s.tick(0, true)
	unheard(since, 2)
	s.tick(0, true, func(r *v1alpha1.NodeReport) { r.Status.Agents[1].Problem = "blind" })
	unheard(since, 1)
	s.tick(0, true)
	unheard(since, 0)
}

func TestBarrierAndLeaving(t *testing.T) {
	s := newScript(t)
	s.tick(0, true, func(r *v1alpha1.NodeReport) {
		r.Status.Barriers = []v1alpha1.BarrierReport{{Sentinel: "0"}, {Sentinel: "1"}}
	})
	if got := s.tally.Behind("1", []string{"m", "n"}); fmt.Sprint(got) != "[m]" {
		t.Errorf("behind: %v", got)
	}
	if got := s.tally.Behind("2", []string{"n"}); fmt.Sprint(got) != "[n]" {
		t.Errorf("behind: %v", got)
	}
	if got := s.tally.Calling(map[string]bool{"probe": true}, []string{"n"}); fmt.Sprint(got) != "[n]" {
		t.Errorf("calling: %v", got)
	}
	s.tick(0, true, func(r *v1alpha1.NodeReport) { r.Status.Probes[0].Address = "http://10.96.0.5/health" })
	if got := s.tally.Calling(map[string]bool{"10.96.0.5": true}, []string{"n"}); fmt.Sprint(got) != "[n]" {
		t.Errorf("calling: %v", got)
	}
	s.tally.Forget("n")
	if got := s.tally.Behind("1", []string{"n"}); fmt.Sprint(got) != "[n]" {
		t.Errorf("behind: %v", got)
	}
}

// TestTroubleIsSilence: an agent that says all the time that it cannot see is as good as none.
func TestTroubleIsSilence(t *testing.T) {
	s := newScript(t)
	s.tick(0, true)
	for range 3 {
		s.tick(0, true, func(r *v1alpha1.NodeReport) { r.Status.Agents[1].Problem = "blind" })
	}
	if quiet := s.tally.Silence(Agent{"n", v1alpha1.FromPod}, begin, s.now); quiet != 6*time.Second {
		t.Errorf("in trouble, and silent for %s", quiet)
	}
	s.tick(0, true)
	if quiet := s.tally.Silence(Agent{"n", v1alpha1.FromPod}, begin, s.now); quiet != 0 {
		t.Errorf("well, and silent for %s", quiet)
	}
}

// TestInstancesTakeTurns: where pods are restarted two instances report in turns for a while. Each
// counts from its own beginning, and what either loses is lost.
func TestInstancesTakeTurns(t *testing.T) {
	s := newScript(t)
	for range 3 {
		s.tick(0, true)
	}
	s.unsettled(0)
	s.counted(20, 0)
	younger := &script{T: t, tally: s.tally, now: s.now, instance: "b", window: s.window}
	younger.tick(0, true)
	s.unsettled(2)
	if fresh := s.tick(1, true); len(fresh) != 2 {
		t.Errorf("what the older one loses meanwhile is reported: %v", fresh)
	}
	s.counted(40, 2)
	younger.tick(0, true)
	s.unsettled(0)
	younger.tick(2, true)
	s.counted(60, 6)
	s.tick(0, true)
	s.counted(80, 6)
}

// TestExcused: nothing is held against a node whose pods leave it, and all is once everything has
// been answered there again.
func TestExcused(t *testing.T) {
	s := newScript(t)
	for range 3 {
		s.tick(0, true)
	}
	s.tally.Excuse("n", true)
	if fresh := s.tick(4, true); len(fresh) > 0 {
		t.Errorf("lost: %v", fresh)
	}
	for range 3 {
		s.tick(0, true)
	}
	s.tally.Excuse("n", false)
	s.counted(20, 0)
	s.tick(0, true)
	s.unsettled(0)
	if fresh := s.tick(1, true); len(fresh) != 2 {
		t.Errorf("lost: %v", fresh)
	}
}

// TestAgentsThatHaveLeft: the last report of an agent that left with the pods of its node does not
// stand for the next one, which may be long in starting, however often the other agent reports.
func TestAgentsThatHaveLeft(t *testing.T) {
	s := newScript(t)
	for range 3 {
		s.tick(0, true)
	}
	s.tally.Excuse("n", true)
	s.tick(0, true)
	s.tally.Excuse("n", true)
	last := s.report.Status.Agents[1].Sequence
	ended := func(r *v1alpha1.NodeReport) { r.Status.Agents[1].Sequence = last }
	s.tick(0, true, ended)
	s.tally.Excuse("n", false)
	for range 3 {
		s.tick(0, true, ended)
	}
	s.unsettled(1)
	s.instance = "b"
	s.tick(0, true)
	s.tick(0, true)
	s.unsettled(0)
}

// TestUnderWayWhenItBegins: what was due before losses count, and fails after, is what came before:
// a run that follows on trouble begins when the trouble is over.
func TestUnderWayWhenItBegins(t *testing.T) {
	s := newScript(t)
	for range 3 {
		s.tick(0, true)
	}
	s.unsettled(0)
	armed := s.now.Add(-2 * time.Second)
	due := func(at time.Time) func(*v1alpha1.NodeReport) {
		return func(r *v1alpha1.NodeReport) {
			for i := range r.Status.Probes {
				r.Status.Probes[i].Losses = []v1alpha1.LossWindow{
					{Start: metav1.NewMicroTime(armed.Add(-time.Second)), End: metav1.NewMicroTime(at), Failed: 1},
				}
			}
		}
	}
	if fresh := s.tick(1, false, due(armed.Add(-time.Second))); len(fresh) > 0 {
		t.Errorf("due before: %v", fresh)
	}
	if fresh := s.tick(1, false, due(armed.Add(time.Second))); len(fresh) != 2 {
		t.Errorf("due after: %v", fresh)
	}
	s.counted(60, 2)
}
