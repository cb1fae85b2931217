//go:build root

package nodecleanup

import (
	"slices"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/testing/ownnet"
)

// TestRulesOfRouting has the kernel's rule for local addresses where Cilium moves it, and rules and
// routes of tables of its own: they go, the node knows its own addresses all the time, and rules of
// others stay.
func TestRulesOfRouting(t *testing.T) {
	ownnet.Enter(t)
	run(t, "", "ip", "link", "set", "lo", "up")
	before := run(t, "", "ip", "rule")
	for _, words := range []string{
		"rule add pref 9 fwmark 0x200/0xf00 lookup 2004", "route add local default dev lo table 2004",
		"rule add pref 100 lookup local", "rule del pref 0 lookup local",
	} {
		run(t, "", append([]string{"ip"}, strings.Fields(words)...)...)
	}
	run(t, "", "ip", "rule", "add", "pref", "50", "lookup", "77")
	cilium, _ := Find("cilium")
	p := rulePart{cilium}
	found, err := p.find()
	want := []string{"rule 9 for routing table 2004", "rule for local addresses at 100 in place of 0", "route in table 2004"}
	if err != nil || !slices.Equal(found, want) {
		t.Errorf("found %q, want %q; %v", found, want, err)
	}
	must(t, p.remove())
	if found, err := p.find(); err != nil || len(found) > 0 {
		t.Errorf("left are %q, %v", found, err)
	}
	run(t, "", "ip", "rule", "del", "pref", "50")
	if after := run(t, "", "ip", "rule"); after != before {
		t.Errorf("rules are\n%s, and were\n%s", after, before)
	}
	must(t, p.remove()) // a second time there is nothing
	flannel, _ := Find("flannel")
	if found, err := (rulePart{flannel}).find(); err != nil || len(found) > 0 {
		t.Errorf("flannel has %q, %v", found, err)
	}
}
