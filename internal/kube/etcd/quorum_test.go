package etcd

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// cluster reads members such as "cp1* cp2 cp3! cp4~ cp5#": the leader, one that is not healthy, a
// learner, one with an alarm.
func cluster(text string) *Membership {
	c := &Membership{}
	for i, word := range strings.Fields(text) {
		name := strings.TrimRight(word, "*!~#")
		m := Member{ID: uint64(i + 1), Name: name, Healthy: !strings.Contains(word, "!"), Learner: strings.Contains(word, "~")}
		if strings.Contains(word, "#") {
			m.Alarms = []string{"NOSPACE"}
		}
		if strings.Contains(word, "*") {
			c.Leader = m.ID
		}
		c.Members = append(c.Members, m)
	}
	return c
}

func TestAllow(t *testing.T) {
	for _, tt := range []struct {
		members string
		change  MemberChange
		refused string // empty if it is allowed
	}{
		{"cp1* cp2 cp3", MemberChange{AddLearner, "cp4"}, ""},
		{"cp1* cp2 cp3", MemberChange{AddLearner, "cp2"}, "there is a member of that name"},
		{"cp1* cp2 cp3 cp4~", MemberChange{Promote, "cp4"}, ""},
		{"cp1* cp2 cp3 cp4~!", MemberChange{Promote, "cp4"}, "member cp4 is not healthy"},
		{"cp1* cp2 cp3 cp4", MemberChange{Promote, "cp4"}, "it has a vote already"},
		{"cp1* cp2 cp3 cp4~", MemberChange{AddLearner, "cp5"}, "member cp4 is still a learner"},
		{"cp1* cp2 cp3 cp4~", MemberChange{Remove, "cp1"}, "member cp4 is still a learner"},
		{"cp1* cp2 cp3 cp4", MemberChange{Remove, "cp1"}, ""},
		{"cp1* cp2 cp3", MemberChange{Remove, "cp1"}, ""},
		{"cp1* cp2 cp3", MemberChange{Stop, "cp1"}, ""},
		{"cp1* cp2", MemberChange{Stop, "cp1"}, "of 2 voters 1 would be left to agree, of 2, and it takes 2"},
		{"cp1* cp2", MemberChange{Remove, "cp2"}, ""},
		{"cp1*", MemberChange{Stop, "cp1"}, "of 1 voters 0 would be left to agree, of 1, and it takes 1"},
		{"cp1*", MemberChange{Remove, "cp1"}, "of 1 voters 0 would be left to agree, of 0, and it takes 1"},
		{"cp1* cp2 cp3!", MemberChange{Remove, "cp2"}, "member cp3 is not healthy"},
		{"cp1* cp2 cp3!", MemberChange{Stop, "cp2"}, "member cp3 is not healthy"},
		{"cp1* cp2 cp3!", MemberChange{AddLearner, "cp4"}, "member cp3 is not healthy"},
		{"cp1* cp2 cp3!", MemberChange{Remove, "cp3"}, ""},
		{"cp1* cp2 cp3#", MemberChange{Remove, "cp1"}, "member cp3 has raised NOSPACE"},
		{"cp1 cp2 cp3", MemberChange{Remove, "cp1"}, "there is no leader"},
		{"cp1* cp2 cp3", MemberChange{Remove, "cp9"}, "there is no member of that name"},
		{"cp1* cp2 cp3 cp4~!", MemberChange{Remove, "cp4"}, ""},
		{"cp1* cp2 cp3!", MemberChange{Readdress, "cp3"}, ""},
		{"cp1* cp2 cp3", MemberChange{Readdress, "cp3"}, ""},
		{"cp1* cp2! cp3!", MemberChange{Readdress, "cp3"}, "member cp2 is not healthy"},
		{"cp1* cp2", MemberChange{Readdress, "cp2"}, "of 2 voters 1 would be left to agree, of 2, and it takes 2"},
		{"cp1* cp2 cp3 cp2", MemberChange{Remove, "cp2"}, "members 2 and 4 are both called that"},
		{"cp1* cp2 cp3 cp2", MemberChange{Remove, "4"}, ""},
	} {
		err := cluster(tt.members).Allow(tt.change)
		var refused *RefusedError
		switch {
		case tt.refused == "" && err != nil:
			t.Errorf("%s of %s from %s: %v", tt.change.Kind, tt.change.Member, tt.members, err)
		case tt.refused != "" && (!errors.As(err, &refused) || refused.Problem != tt.refused):
			t.Errorf("%s of %s from %s: %v, not %q", tt.change.Kind, tt.change.Member, tt.members, err, tt.refused)
		}
	}
}

// TestNoOrderLosesQuorum makes every change that is allowed, one after the other, from clusters of
// 1 to 5 members: whatever the order, those who are healthy can agree.
func TestNoOrderLosesQuorum(t *testing.T) {
	var walk func(c *Membership, depth int)
	states := 0
	walk = func(c *Membership, depth int) {
		states++
		voters, healthy := 0, 0
		for _, m := range c.Members {
			if !m.Learner {
				voters++
				if m.Healthy {
					healthy++
				}
			}
		}
		if healthy < quorum(voters) {
			t.Fatalf("%d of %d can agree: %+v", healthy, voters, c.Members)
		}
		if depth == 0 {
			return
		}
		for _, name := range []string{"a", "b", "c", "d", "e", "new"} {
			for _, kind := range []MemberChangeKind{AddLearner, Promote, Remove, Stop} {
				change := MemberChange{kind, name}
				if c.Allow(change) == nil {
					walk(after(c, change), depth-1)
				}
			}
		}
	}
	for _, members := range []string{"a*", "a* b", "a* b c", "a* b c d", "a* b c d e"} {
		walk(cluster(members), 5)
	}
	t.Logf("%d states", states)
}

// after a change, the first voter that is healthy leads.
func after(c *Membership, change MemberChange) *Membership {
	n := &Membership{}
	for _, m := range c.Members {
		switch {
		case m.Name == change.Member && change.Kind == Remove:
			continue
		case m.Name == change.Member && change.Kind == Promote:
			m.Learner = false
		case m.Name == change.Member && change.Kind == Stop:
			m.Healthy = false
		}
		n.Members = append(n.Members, m)
	}
	if change.Kind == AddLearner {
		n.Members = append(n.Members, Member{ID: 99, Name: change.Member, Healthy: true, Learner: true})
	}
	for _, m := range n.Members {
		if m.Healthy && !m.Learner && n.Leader == 0 {
			n.Leader = m.ID
		}
	}
	return n
}

// TestRefusedError reads as people read it.
func TestRefusedError(t *testing.T) {
	c := cluster("cp1* cp2 cp3!")
	c.Members[2].Problem = "connection refused"
	for _, tt := range []struct {
		cluster *Membership
		change  MemberChange
		text    string
		hint    string
		passing bool
	}{
		{
			c, MemberChange{Stop, "cp2"}, "etcd member cp2: stop is refused: member cp3 is not healthy: connection refused " +
				"(of 3 voters 1 would be left to agree, of 3, and it takes 2)", "", true,
		},
		{
			cluster("cp1* cp2 cp3#"), MemberChange{AddLearner, "cp4"}, "etcd member cp4: add is refused: member cp3 has raised NOSPACE " +
				"(of 3 voters 3 would be left to agree, of 3, and it takes 2)", alarmHint, false,
		},
		{
			cluster("cp1* cp2"), MemberChange{Stop, "cp2"}, "etcd member cp2: stop is refused: " +
				"of 2 voters 1 would be left to agree, of 2, and it takes 2", "", false,
		},
	} {
		err := tt.cluster.Allow(tt.change)
		if err == nil || err.Error() != tt.text || fault.Advice(err) != tt.hint {
			t.Errorf("%v\nis not\n%s", err, tt.text)
		}
		if engine.Retryable(refusal(err)) != tt.passing {
			t.Errorf("%v: tried again, that is %v", err, !tt.passing)
		}
	}
}

func TestFind(t *testing.T) {
	c := cluster("cp1* cp2 cp3")
	c.Members = append(c.Members, Member{ID: 0xab, PeerURLs: []string{"https://10.0.0.4:2380"}, Learner: true})
	for who, id := range map[string]uint64{"cp2": 2, "https://10.0.0.4:2380": 0xab, "ab": 0xab, "": 0, "cp4": 0} {
		m := c.Find(who)
		if (m == nil && id != 0) || (m != nil && m.ID != id) {
			t.Errorf("%q is %+v", who, m)
		}
	}
	for i := range c.Members[:3] {
		c.Members[i].PeerURLs = []string{"https://" + c.Members[i].Name}
	}
	want := "cp1=https://cp1,cp2=https://cp2,cp3=https://cp3,cp4=https://10.0.0.4:2380"
	if got := c.InitialCluster("cp4", "https://10.0.0.4:2380"); got != want {
		t.Errorf("initial cluster %s", got)
	}
}

func TestNextLeader(t *testing.T) {
	for _, tt := range []struct {
		members string
		applied []uint64
		leaving []string
		next    string
	}{
		{"cp1* cp2 cp3", []uint64{9, 5, 7}, nil, "cp3"},
		{"cp1* cp2 cp3", []uint64{9, 5, 7}, []string{"cp1", "cp3"}, "cp2"},
		{"cp1* cp2 cp3", []uint64{9, 5, 7}, []string{"cp1", "cp2", "cp3"}, "cp3"},
		{"cp1* cp2 cp3!", []uint64{9, 5, 7}, nil, "cp2"},
		{"cp1* cp2# cp3~", []uint64{9, 5, 7}, nil, ""},
		{"cp1*", []uint64{9}, nil, ""},
	} {
		c := cluster(tt.members)
		for i, n := range tt.applied {
			c.Members[i].Applied = n
		}
		nextLeader := c.nextLeader(tt.leaving)
		if (nextLeader == nil) != (tt.next == "") || (nextLeader != nil && nextLeader.Name != tt.next) {
			t.Errorf("%s, %v leaving: %+v, not %s", tt.members, tt.leaving, nextLeader, tt.next)
		}
	}
	if got := cluster("cp1* cp2 cp3").LeaderLast([]string{"cp1", "cp2", "cp3"}); !slices.Equal(got, []string{"cp2", "cp3", "cp1"}) {
		t.Errorf("in order: %v", got)
	}
}
