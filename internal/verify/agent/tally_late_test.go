package agent

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/probe"
)

// TestTallyTellsLateFromLost: late answers and what was not measured are reported from when the
// instance began and in each stretch, and neither counts as sent and lost.
func TestTallyTellsLateFromLost(t *testing.T) {
	tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
	a := tally.ask(aTarget("a:1"), at(0))
	for s := range int64(kept + 20) { // what is older than can be corrected is counted still
		w := window(s, 5, 0)
		if s%2 == 0 {
			w.Late, w.NotMeasured = 2, 1
		}
		a.window(w)
		r := drawn(t, tally)
		tally.retain()
		wantCounts(t, r, 5*(s+1), 0)
		if want := s/2 + 1; r.Late != 2*want || r.NotMeasured != want {
			t.Fatalf("second %d: %d late, %d not measured, want %d, %d", s, r.Late, r.NotMeasured, 2*want, want)
		}
		if last := r.Recent[len(r.Recent)-1]; last.Late != w.Late || last.NotMeasured != w.NotMeasured || last.Failed != 0 {
			t.Fatalf("second %d: %+v", s, last)
		}
	}
}

// TestTallyForgivesLate: an answer is not late that came from a target where nothing was bound to
// answer any more.
func TestTallyForgivesLate(t *testing.T) {
	for _, forgive := range []bool{false, true} {
		tally := newTally(aTarget("a:1"), v1alpha1.FromHost, "uid", at(0))
		a := tally.ask(aTarget("a:1"), at(0))
		a.takeAway(at(10), forgive)
		for _, second := range []int64{2, 9, 11} {
			w := window(second, 5, 0)
			w.Late = 1
			a.window(w)
		}
		want := int64(3)
		if forgive {
			want = 1
		}
		if r := drawn(t, tally); r.Late != want || r.Sent != 15 {
			t.Errorf("forgive %v: %+v", forgive, r)
		}
	}
}

// TestSecondQuestionIsLate: resolvers of agents' pods ask again by themselves, after a second, so
// that a datagram that is lost ends as a good answer. It is a late one, and no loss. Here they ask
// again after as long as the resolv.conf of the machine says.
func TestSecondQuestionIsLate(t *testing.T) {
	t.Parallel()
	config, err := probe.Config{Targets: []probe.Target{{
		Name: "pod/dns", Kind: probe.DNS, Address: "probe.test.", Resolver: deaf(t), Rate: 1, Timeout: probe.Duration(30 * time.Second),
	}}}.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	of := target{Target: config.Targets[0]}
	tally := newTally(of, v1alpha1.FromPod, "uid", time.Now())
	a := tally.ask(of, time.Now())
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := probe.New(config, func(w probe.Interval) error { a.window(w); return nil }).Run(ctx); err != nil {
		t.Fatal(err)
	}
	if r := drawn(t, tally); r.Failed != 0 || r.Sent == 0 || r.Late != 1 {
		t.Errorf("%d sent, %d failed, %d late", r.Sent, r.Failed, r.Late)
	}
}

// deaf is the address of a name server that the first question never reaches.
func deaf(t *testing.T) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, question *dns.Msg) {
		if asked.Add(1) == 1 {
			return
		}
		answer := new(dns.Msg).SetReply(question)
		answer.RecursionAvailable = true // or no address would be taken for a referral, and asked for again
		if q := question.Question[0]; q.Qtype == dns.TypeA {
			answer.Answer = []dns.RR{
				&dns.A{Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 5}, A: net.IPv4(192, 0, 2, 1)},
			}
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })
	return conn.LocalAddr().String()
}
