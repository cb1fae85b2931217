package agent

import (
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/replumb/replumb/api/v1alpha1"
)

const mostFailed = 32

// connects decides which Services to connect to, and what the results mean:
//
//   - a Service with a bridge, before its move, is connected to at its address: the baseline;
//   - after a move, at its address and where its bridge answers for it;
//   - a failure then is a loss if the baseline was good. Without a baseline the two addresses vouch
//     for each other, since they lead to the same pods: a loss fails at one only.
type connects struct {
	movers  map[types.UID]mover
	records map[types.UID]*record
	failed  []v1alpha1.FailedConnect
	more    int
}

type record struct {
	// known says that there is a baseline; answers, that it was good.
	known, answers bool
	// busy while an attempt is under way.
	busy bool
	// tried is the move after which the Service was last connected to.
	tried string
}

type attempt struct {
	mover     mover
	baseline  bool
	addresses []netip.AddrPort
}

type outcome struct {
	address netip.AddrPort
	err     error
	// void says that the address is not bound to lead to the Service any more.
	void bool
}

func (c *connects) next(movers []mover) []attempt {
	c.movers = make(map[types.UID]mover, len(movers))
	records := make(map[types.UID]*record, len(movers))
	var due []attempt
	for _, m := range movers {
		r := c.records[m.uid]
		if r == nil {
			r = &record{}
		}
		c.movers[m.uid], records[m.uid] = m, r
		if a, is := r.next(m); is {
			r.busy = true
			due = append(due, a)
		}
	}
	c.records = records
	return due
}

func (r *record) next(m mover) (attempt, bool) {
	switch {
	case r.busy || !m.at.IsValid() || (r.tried == m.movedAt && (r.known || m.movedAt != "")):
		return attempt{}, false
	case m.port == 0, m.movedAt != "" && r.known && !r.answers: // counts without a connection
		r.known, r.tried = true, m.movedAt
		return attempt{}, false
	}
	a := attempt{mover: m, baseline: m.movedAt == "", addresses: []netip.AddrPort{netip.AddrPortFrom(m.at, m.port)}}
	if !a.baseline && m.other.IsValid() {
		a.addresses = append(a.addresses, netip.AddrPortFrom(m.other, m.port))
	}
	return a, true
}

// repeat is another attempt for a Service that has changed meanwhile.
func (c *connects) repeat(after attempt) (attempt, bool) {
	m, there := c.movers[after.mover.uid]
	if !there || m == after.mover {
		return attempt{}, false
	}
	r := c.records[m.uid]
	a, is := r.next(m)
	r.busy = r.busy || is
	return a, is
}

func (c *connects) done(a attempt, outcomes []outcome, now metav1.MicroTime) (lost bool) {
	r := c.records[a.mover.uid]
	if r == nil { // nothing asks any more
		return false
	}
	r.busy = false
	good := slices.ContainsFunc(outcomes, func(o outcome) bool { return o.err == nil })
	counts := slices.ContainsFunc(outcomes, func(o outcome) bool { return !o.void })
	vouched := good || (r.known && r.answers)
	if good || (counts && !r.known) {
		r.known, r.answers = true, good
	}
	if a.baseline {
		return false
	}
	r.tried = a.mover.movedAt
	for _, o := range outcomes {
		if o.err != nil && !o.void && vouched {
			c.fail(a.mover, o, now)
			lost = true
		}
	}
	return lost
}

func (c *connects) fail(m mover, o outcome, now metav1.MicroTime) {
	if len(c.failed) == mostFailed {
		c.more++
		return
	}
	text := o.err.Error()
	c.failed = append(c.failed, v1alpha1.FailedConnect{
		Service: m.key.String(), Address: o.address.String(), At: now, Error: text[:min(len(text), longestError)],
	})
}

func (c *connects) idle() bool {
	for _, r := range c.records {
		if r.busy {
			return false
		}
	}
	return true
}

func (c *connects) report(instance string) *v1alpha1.ConnectReport {
	report := &v1alpha1.ConnectReport{
		Instance: instance, Failed: append([]v1alpha1.FailedConnect(nil), c.failed...), MoreFailed: c.more,
	}
	for _, m := range c.movers {
		if r := c.records[m.uid]; m.movedAt != "" && m.at.IsValid() && r != nil && r.tried == m.movedAt {
			report.Connected++
		}
	}
	return report
}
