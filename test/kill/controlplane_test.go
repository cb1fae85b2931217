//go:build long

package kill

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/etcdtest"
)

// strikes kills the process that runs at moments of its choice, at each once.
type strikes struct {
	wants func(moment string) bool

	mu      sync.Mutex
	running *process
	killed  bool
	done    []string
}

func (k *strikes) begin(p *process) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.running, k.killed = p, false
}

// at is told of every moment.
func (k *strikes) at(moment string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running == nil || k.killed || slices.Contains(k.done, moment) || !k.wants(moment) {
		return
	}
	if err := k.running.Process.Kill(); errors.Is(err, os.ErrProcessDone) {
		return
	}
	k.killed = true
	k.done = append(k.done, moment)
}

// struck reports whether the process that ran was killed.
func (k *strikes) struck() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.killed
}

// trip applies the Migration, killed at moments, and run again after each of them, until it comes to its end.
func (s *site) trip(wants func(moment string) bool) {
	s.Helper()
	file, k := s.note(), &strikes{wants: wants}
	s.heard = k.at
	for {
		p := s.replumb(s.T, "apply", "-f", file)
		k.begin(p)
		var events []engine.Event
		for e, ok := p.next(s.T); ok; e, ok = p.next(s.T) {
			events = append(events, e)
			if e.Kind == engine.StepStarted && (e.Phase == "control-plane" || e.Phase == "verify") {
				k.at(e.Step)
			}
		}
		if !k.struck() {
			p.end(s.T, events)
			break
		}
		_ = p.Wait() // it was killed
		p.limit()
		if len(k.done) == 1 && len(s.unfinished()) == 0 {
			s.Error("killed and not run again, all is as it has to be in the end: looking at that proves nothing")
		}
	}
	s.Logf("killed %d times: %s", len(k.done), strings.Join(k.done, ", "))
	if len(k.done) == 0 {
		s.Error("no moment came at which it was to be killed")
	}
}

// everywhere is every step and every action, once; with -short those of one control plane that some change begins with.
func everywhere(some ...string) func(moment string) bool {
	if !testing.Short() {
		return func(string) bool { return true }
	}
	return func(moment string) bool { return slices.Contains(some, moment) }
}

// moves has the control planes of a site move, killed on the way, and looks at what has become of both etcds.
func (s *site) moves(some ...string) {
	s.Helper()
	var stays string
	if s.external {
		all, err := s.main.members(s.Context())
		must(s, err)
		stays = shape(all)
	}
	s.trip(everywhere(some...))
	s.whole(s.T, "finish", "move", "--yes")
	for _, text := range append(s.unfinished(), s.complaints()...) {
		s.Error(text)
	}
	if s.external {
		all, err := s.main.members(s.Context())
		if now := shape(all); err != nil || now != stays {
			s.Errorf("the etcd that stays had the members\n%s\nand has\n%s\n%v", stays, now, err)
		}
	}
	s.requireEverything()
}

// TestKillTwoEtcds kills moves of control planes with members of two etcds, real ones: others join first, in both.
func TestKillTwoEtcds(t *testing.T) {
	t.Parallel()
	newSite(t, false, false).moves("events-learner/cp1", "vote/cp1", "etcd-events/removed/cp1", "after terminate cp1")
}

// TestKillExternalEtcd kills moves of control planes whose etcd is elsewhere, and stays.
func TestKillExternalEtcd(t *testing.T) {
	t.Parallel()
	newSite(t, true, false).moves("after provision cp1", "serves/cp1", "before terminate cp1")
}

// TestKillReplace kills moves of control planes that are stopped and come back with their data.
func TestKillReplace(t *testing.T) {
	t.Parallel()
	newSite(t, false, true).moves("before terminate cp1", "after provision cp1", "address/cp1", "events-address/cp1")
}

// TestNaiveEtcd is the control of all these: what they look for is seen when members are changed without thought.
func TestNaiveEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t, false, true)
	st := s.main
	m, all := s.machines["cp1"], s.stored(st)

	t.Run("come back before it has stopped", func(t *testing.T) {
		s.mu.Lock()
		_, err := s.comeBack(m)
		s.mu.Unlock()
		if err == nil {
			t.Error("it came back")
		}
		s.sees(t, "cp1 was to come back before it had stopped")
		second := st.place(t, m.name, s.address(inNew+m.number))
		must(t, st.start(second))
		second.Kill()
		s.sees(t, "the data of cp1 had 2 writers at once")
	})
	t.Run("removed before another has its vote", func(t *testing.T) {
		first := s.stored(s.events)[0].ID
		s.eventually(t, func() error { // members that have just started may not go
			_, err := s.events.client.MemberRemove(t.Context(), first)
			return err
		})
		s.sees(t, "events etcd had 2 voters")
	})
	t.Run("ended as a member", func(t *testing.T) {
		s.mu.Lock()
		defer s.mu.Unlock()
		must(t, s.end(&machine{name: "cp9", members: map[*store]*etcdtest.Member{st: {Peer: all[0].PeerURLs[0]}}}))
	})
	s.sees(t, "cp9 is still a member, and its machine was to end")
	t.Run("two of three stopped", func(t *testing.T) {
		m.members[st].Kill()
		s.more(t, st) // which cp1 does not have
		s.mu.Lock()
		s.stopMachine(s.machines["cp2"])
		s.mu.Unlock()
		s.sees(t, "stopping cp2: etcd: without cp2 1 of 3 voters agree, which is no quorum")
	})
	t.Run("begun again from the member that was away", func(t *testing.T) {
		st.rest()
		s.off()
		must(t, st.start(m.members[st], "--force-new-cluster"))
		s.eventually(t, func() error {
			lost, err := st.lost(t, &etcdserverpb.Member{ClientURLs: []string{m.members[st].Client}})
			if err == nil && lost == 0 {
				t.Error("nothing is lost: counting keys proves nothing")
			}
			return err
		})
	})
}

// stored are the members of an etcd.
func (s *site) stored(st *store) []*etcdserverpb.Member {
	s.Helper()
	all, err := st.members(s.Context())
	must(s, err)
	return all
}

// more waits until more keys are written.
func (s *site) more(t *testing.T, st *store) {
	t.Helper()
	count := func() int {
		st.mu.Lock()
		defer st.mu.Unlock()
		return len(st.acknowledged)
	}
	enough := count() + 20
	s.eventually(t, func() error {
		if n := count(); n < enough {
			return fmt.Errorf("%d keys are written", n)
		}
		return nil
	})
}

// sees fails the test unless one of the complaints comes to say so.
func (s *site) sees(t *testing.T, text string) {
	t.Helper()
	s.eventually(t, func() error {
		all := s.complaints()
		if !slices.ContainsFunc(all, func(c string) bool { return strings.Contains(c, text) }) {
			return fmt.Errorf("no complaint says %q: %q", text, all)
		}
		return nil
	})
}
