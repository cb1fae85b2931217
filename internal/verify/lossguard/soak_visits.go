package lossguard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize/english"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/verify/conntrack"
)

// Past reports whether the node only remembers the client, at the time of its report.
func (c *OldAddressClient) Past(reported time.Time) bool {
	return c.Open == 0 && reported.Sub(c.LastSeen.Time) > conntrack.Kept
}

func (c *OldAddressClient) began(used time.Time) time.Time {
	if c.FirstSeen == nil {
		return used
	}
	return used.Add(-c.LastSeen.Sub(c.FirstSeen.Time))
}

// reportedAt is when the host agent has reported, by its node's clock.
func reportedAt(r *v1alpha1.NodeReport) (at time.Time) {
	for i := range r.Status.Agents {
		if r.Status.Agents[i].Origin == v1alpha1.FromHost {
			at = r.Status.Agents[i].ReportedAt.Time
		}
	}
	return at
}

// visits are the uses of an address by one client, on whichever nodes its pods were.
type visits struct {
	latest *soakClient
	gap    time.Duration
}

// visits merges what several nodes have seen of each client.
func (s *Soak) visits() []visits {
	type who struct{ address, protocol, name string }
	of := map[who][]*soakClient{}
	for _, c := range s.clients {
		key := who{c.Address, c.Protocol, cmp.Or(c.Workload, c.Pod, c.Source)}
		of[key] = append(of[key], c)
	}
	var all []visits
	for _, seen := range of {
		slices.SortFunc(seen, func(a, b *soakClient) int { return a.first.Compare(b.first) })
		v := visits{latest: seen[0]}
		for i, c := range seen {
			if c.LongestGap != nil {
				v.gap = max(v.gap, c.LongestGap.Duration)
			}
			if i > 0 {
				v.gap = max(v.gap, c.first.Sub(v.latest.used))
			}
			if c.used.After(v.latest.used) {
				v.latest = c
			}
		}
		all = append(all, v)
	}
	return all
}

// mayComeBack names clients that have been away for no longer than before.
func (s *Soak) mayComeBack(now time.Time) string {
	var words []string
	for _, v := range s.visits() {
		ended := v.latest.Gone && v.latest.Workload == ""
		if v.gap == 0 || ended || now.Sub(v.latest.used) >= v.gap+s.Length {
			continue
		}
		words = append(words, fmt.Sprintf("%s on node %s at %s (service %s), last seen %s ago and away for up to %s",
			v.latest.PodOrSource(), v.latest.Node, v.latest.Address, v.latest.Service, now.Sub(v.latest.used).Round(time.Second), v.gap))
	}
	if len(words) == 0 {
		return ""
	}
	slices.Sort(words)
	n := len(words)
	if n > named {
		words = append(words[:named], fmt.Sprintf("and %d more", n-named))
	}
	return fmt.Sprintf("%s of old addresses may come back: %s", english.Plural(n, "client", ""), strings.Join(words, "; "))
}
