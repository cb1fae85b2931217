package lossguard

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Late is how many good answers of a probe on one node were late in this run.
type Late struct {
	Node, Probe, Address string
	Answers              int64
}

func (t *Tally) late(node string, p *v1alpha1.ProbeReport, answers int64) {
	if answers <= 0 {
		return
	}
	t.Late += answers
	of := Late{Node: node, Probe: p.Name, Address: p.Address, Answers: answers}
	same := func(l Late) bool { return l.Node == of.Node && l.Probe == of.Probe }
	if i := slices.IndexFunc(t.Lates, same); i >= 0 {
		of.Answers += t.Lates[i].Answers
		t.Lates = slices.Delete(t.Lates, i, i+1)
	}
	t.Lates = append(t.Lates, of)
	t.Lates = t.Lates[max(0, len(t.Lates)-maxLosses):]
}

// lateFrom counts late answers in whole stretches after a time, by the node's clock.
func lateFrom(p *v1alpha1.ProbeReport, since time.Time) (sum int64) {
	for _, w := range p.Recent {
		if w.Start >= since.Unix() {
			sum += int64(w.Late)
		}
	}
	return sum
}

// describeLate says in words which probes had late answers, the latest first.
func describeLate(all []Late) string {
	var parts []string
	for _, l := range slices.Backward(all) {
		if len(parts) == namedLosses {
			parts = append(parts, fmt.Sprintf("and %d more", len(all)-namedLosses))
			break
		}
		parts = append(parts, fmt.Sprintf("probe %s on node %s to %s had %s", l.Probe, l.Node, l.Address,
			english.Plural(int(l.Answers), "late answer", "")))
	}
	return strings.Join(parts, "; ")
}
