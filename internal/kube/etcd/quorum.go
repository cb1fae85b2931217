// Package etcd changes etcd's members one at a time, and never loses the quorum.
package etcd

import (
	"fmt"
	"slices"
	"strings"
)

// Member of an etcd cluster, as the cluster and the member itself tell.
type Member struct {
	ID   uint64
	Name string
	// PeerURLs are where other members reach it, ClientURLs where clients do.
	PeerURLs, ClientURLs []string
	// Learner says that it receives everything and has no vote.
	Learner bool
	// Healthy members answer, follow the leader and, as voters, read consistently.
	Healthy bool
	// Problem is why it is not healthy.
	Problem string
	// Alarms are those it has raised, such as NOSPACE.
	Alarms []string
	// Version it runs, such as 3.6.8; empty if it did not tell.
	Version string
	// Revision of keys, and the last log entries known as committed and applied.
	Revision           int64
	Committed, Applied uint64
	// Term it is in: higher with every election.
	Term uint64
	// Size of its database on disk, and how much of it is in use, in bytes.
	Size, InUse int64
}

// Called is its name or, before its first start, its peer URL.
func (m *Member) Called() string {
	if m.Name == "" {
		return strings.Join(m.PeerURLs, ",")
	}
	return m.Name
}

// Membership is all members at one time.
type Membership struct {
	ID      uint64
	Members []Member
	// Leader is the ID of the one that leads, as it says itself; zero, if there is none.
	Leader uint64
	// Unsure is why the list of members may be an old one: they could not agree on it.
	Unsure string
}

// quorum is the majority of so many voters (Raft, section 5.2).
func quorum(voters int) int { return voters/2 + 1 }

// MemberChangeKind of change.
type MemberChangeKind string

// The changes: a new member is a learner, then promoted, and only then an old one goes.
const (
	// AddLearner brings a member that has no vote yet.
	AddLearner MemberChangeKind = "add"
	// Promote gives a learner its vote.
	Promote MemberChangeKind = "promote"
	// Remove takes a member out for good.
	Remove MemberChangeKind = "remove"
	// Stop has a member pause, and stay one: to come back elsewhere with its data.
	Stop MemberChangeKind = "stop"
	// Readdress tells the others where a member that is stopped will come back.
	Readdress MemberChangeKind = "new address"
)

// MemberChange of one member, by its name, a peer URL or its ID in hex.
type MemberChange struct {
	Kind   MemberChangeKind
	Member string
}

// RefusedError says why a change must not be made now.
type RefusedError struct {
	Change  MemberChange
	Problem string
	// Arithmetic says how many would be left to agree, if that alone is not the problem.
	Arithmetic string
	// Hint is what to do about it, if there is more to do than to wait.
	Hint string
	// Passing says that the problem may go by itself: that it makes sense to ask again.
	Passing bool
}

func (e *RefusedError) Error() string {
	text := fmt.Sprintf("etcd member %s: %s is refused: %s", e.Change.Member, e.Change.Kind, e.Problem)
	if e.Arithmetic != "" {
		text += " (" + e.Arithmetic + ")"
	}
	return text
}

func (e *RefusedError) Advice() string { return e.Hint }

// Allow fails with a *RefusedError if a member is not healthy or too few voters would be left. Only
// the unhealthy member itself may be removed, if the others agree.
func (c *Membership) Allow(change MemberChange) error {
	about, err := c.find(change.Member)
	if err != nil {
		return &RefusedError{Change: change, Problem: err.Error()}
	}
	if problem := c.mistaken(change, about); problem != "" {
		return &RefusedError{Change: change, Problem: problem}
	}
	arithmetic, enough := c.arithmetic(change, about)
	refused := c.unwell(change, about)
	switch {
	case refused != nil:
		refused.Change, refused.Arithmetic = change, arithmetic
		return refused
	case !enough:
		return &RefusedError{Change: change, Problem: arithmetic}
	}
	return nil
}

func (c *Membership) mistaken(change MemberChange, about *Member) string {
	switch {
	case c.Leader == 0:
		return "" // nothing is certain then
	case change.Kind == AddLearner && about != nil:
		return "there is a member of that name"
	case change.Kind != AddLearner && about == nil:
		return "there is no member of that name"
	case change.Kind == Promote && !about.Learner:
		return "it has a vote already"
	}
	return ""
}

// unwell names problems of the cluster, and of members that the change is not about.
func (c *Membership) unwell(change MemberChange, about *Member) *RefusedError {
	if c.Leader == 0 {
		return &RefusedError{Problem: "there is no leader", Passing: true}
	}
	if c.Unsure != "" {
		return &RefusedError{Problem: "the members do not agree on who is one: " + c.Unsure, Passing: true}
	}
	for i := range c.Members {
		m := &c.Members[i]
		switch {
		case m == about && (change.Kind == Remove || change.Kind == Readdress): // the sicker it is, the better
		case !m.Healthy:
			return &RefusedError{Problem: m.defect(), Passing: true}
		case len(m.Alarms) > 0:
			return &RefusedError{Problem: m.defect(), Hint: alarmHint}
		case m.Learner && m != about:
			return &RefusedError{Problem: m.defect(), Passing: true}
		}
	}
	return nil
}

// alarmHint is for NOSPACE and CORRUPT (etcd's operations guide, "Maintenance").
const alarmHint = "find out why, repair it (for NOSPACE: compact, defragment), then disarm it: etcdctl alarm disarm"

func (m *Member) defect() string {
	switch {
	case !m.Healthy && m.Problem != "":
		return fmt.Sprintf("member %s is not healthy: %s", m.Called(), m.Problem)
	case !m.Healthy:
		return fmt.Sprintf("member %s is not healthy", m.Called())
	case len(m.Alarms) > 0:
		return fmt.Sprintf("member %s has raised %s", m.Called(), strings.Join(m.Alarms, ", "))
	case m.Learner:
		return fmt.Sprintf("member %s is still a learner", m.Called())
	}
	return ""
}

// Problem is the first problem of the cluster, members in but aside: no leader, or a member that is
// unhealthy, has raised an alarm or has no vote.
func (c *Membership) Problem(but ...string) string {
	switch {
	case c.Leader == 0:
		return "there is no leader"
	case c.Unsure != "":
		return "the members do not agree on who is one: " + c.Unsure
	}
	for _, m := range c.except(but) {
		if problem := m.defect(); problem != "" {
			return problem
		}
	}
	return ""
}

func (c *Membership) except(but []string) []*Member {
	var left []*Member
	for i := range c.Members {
		if m := &c.Members[i]; !slices.ContainsFunc(but, func(who string) bool { return c.Find(who) == m }) {
			left = append(left, m)
		}
	}
	return left
}

// arithmetic says how many would have to agree afterwards, how many could, and if that is enough.
func (c *Membership) arithmetic(change MemberChange, about *Member) (text string, enough bool) {
	was, healthy := c.Voters()
	voters := was
	switch change.Kind {
	case Promote:
		voters++
		if about != nil && about.Healthy {
			healthy++
		}
	case Remove, Stop, Readdress:
		if about == nil || about.Learner {
			break
		}
		if about.Healthy {
			healthy--
		}
		if change.Kind == Remove {
			voters--
		}
	}
	text = fmt.Sprintf("of %d voters %d would be left to agree, of %d, and it takes %d", was, healthy, voters, quorum(voters))
	return text, healthy >= quorum(voters)
}

// Voters counts the members with a vote, and those of them that are healthy.
func (c *Membership) Voters() (all, healthy int) {
	for i := range c.Members {
		if m := &c.Members[i]; !m.Learner {
			all++
			if m.Healthy {
				healthy++
			}
		}
	}
	return all, healthy
}

// Find returns the member of that name, peer URL or hex ID; nil if there is none or several.
func (c *Membership) Find(who string) *Member {
	m, err := c.find(who)
	if err != nil {
		return nil
	}
	return m
}

func (c *Membership) find(who string) (*Member, error) {
	for _, is := range []func(*Member) bool{
		func(m *Member) bool { return m.Name == who && who != "" },
		func(m *Member) bool { return slices.Contains(m.PeerURLs, who) },
		func(m *Member) bool { return fmt.Sprintf("%x", m.ID) == who },
	} {
		var found []*Member
		for i := range c.Members {
			if is(&c.Members[i]) {
				found = append(found, &c.Members[i])
			}
		}
		switch len(found) {
		case 0:
			continue
		case 1:
			return found[0], nil
		}
		// etcd does not mind: only IDs and peer URLs have to differ.
		return nil, fmt.Errorf("members %x and %x are both called that", found[0].ID, found[1].ID)
	}
	return nil, nil
}

// Leading is the member that leads; nil, if there is none.
func (c *Membership) Leading() *Member {
	i := slices.IndexFunc(c.Members, func(m Member) bool { return m.ID == c.Leader && c.Leader != 0 })
	if i < 0 {
		return nil
	}
	return &c.Members[i]
}

// InitialCluster is the --initial-cluster of a member that was added: names and peer URLs of all,
// with its own name, which the others do not know yet.
func (c *Membership) InitialCluster(name string, peerURLs ...string) string {
	var parts []string
	for i := range c.Members {
		m := &c.Members[i]
		called := m.Name
		if called == "" && slices.ContainsFunc(peerURLs, func(u string) bool { return slices.Contains(m.PeerURLs, u) }) {
			called = name
		}
		for _, u := range m.PeerURLs {
			parts = append(parts, called+"="+u)
		}
	}
	return strings.Join(parts, ",")
}
