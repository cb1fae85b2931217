package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
)

// blameFor is for how long requests to the API server may fail after one of three was killed: its lease as an endpoint of the Service
// kubernetes lasts 15 s, the others look every 10 s (DefaultEndpointReconcilerTTL and DefaultEndpointReconcilerInterval in
// k8s.io/kubernetes pkg/controlplane/reconcilers and pkg/controlplane), and nodes hear of it within seconds. It is the same with a
// migration and without, and an old address that does not follow goes on failing after it.
const blameFor = 30 * time.Second

// tally is what clients lived through.
type tally struct {
	// Sent and Lost are all requests but the blamed ones. Broken are long-lived connections that did.
	Sent, Lost, Broken int
	// BlamedSent and BlamedLost are requests to API servers while one may be blamed.
	BlamedSent, BlamedLost int
	// Losses says what was lost, where and when.
	Losses []string
}

func (t *tally) add(o tally) {
	t.Sent, t.Lost, t.Broken = t.Sent+o.Sent, t.Lost+o.Lost, t.Broken+o.Broken
	t.BlamedSent, t.BlamedLost = t.BlamedSent+o.BlamedSent, t.BlamedLost+o.BlamedLost
	t.Losses = append(t.Losses, o.Losses...)
}

// count adds up what was heard of a stretch of time in which API servers were killed at some moments.
func count(heard map[traffic.Source]probe.Series, from, to time.Time, kills []time.Time) tally {
	var total tally
	for source, series := range heard {
		var strict probe.Series
		for _, w := range series.Between(from, to) {
			if callsAPI(source) && blamed(w, kills) {
				total.BlamedSent += w.Sent
				total.BlamedLost += w.Failed
				continue
			}
			total.Sent += w.Sent
			total.Lost += w.Failed
			total.Broken += w.Reconnects
			if w.Reconnects > 0 {
				total.Losses = append(
					total.Losses,
					fmt.Sprintf("%s: %d connections broke at %s", source, w.Reconnects, clock(w.StartTime())),
				)
			}
			strict = append(strict, w)
		}
		for _, loss := range strict.Losses() {
			total.Losses = append(total.Losses, fmt.Sprintf("%s: lost %d from %s to %s: %s, such as %s", source, loss.Failed,
				clock(loss.Start), clock(loss.End), probe.FormatErrors(loss.Errors), loss.Example))
		}
	}
	slices.Sort(total.Losses)
	return total
}

func clock(t time.Time) string { return t.Format(time.StampMilli) }

// callsAPI reports whether a source calls API servers.
func callsAPI(s traffic.Source) bool {
	return slices.Contains([]traffic.Via{traffic.ByAPIName, traffic.ByAPIOldAddress, traffic.ByAPINewAddress, traffic.ByAPIKept}, s.Via)
}

// blamed reports whether a window lies in the time after a kill. A request under way at the kill was sent up to a time-out before.
func blamed(w probe.Interval, kills []time.Time) bool {
	return slices.ContainsFunc(kills, func(kill time.Time) bool {
		return w.EndTime().After(kill.Add(-traffic.APIPatience)) && w.StartTime().Before(kill.Add(blameFor))
	})
}

// The API servers' part of what is lost may differ by chance: kills fall differently.
const (
	blamedFactor = 2
	blamedSlack  = 0.05
)

// verdict says what is wrong with what clients lived through during migrations, beside what they did without any.
func verdict(control, migrations tally) []string {
	var wrong []string
	if control.Lost+control.Broken > 0 {
		wrong = append(
			wrong,
			fmt.Sprintf("without any migration %d of %d requests were lost and %d connections broke: the lab proves nothing",
				control.Lost, control.Sent, control.Broken),
		)
	}
	if migrations.Lost+migrations.Broken > 0 {
		wrong = append(
			wrong,
			fmt.Sprintf("%d of %d requests were lost and %d connections broke", migrations.Lost, migrations.Sent, migrations.Broken),
		)
	}
	if control.Sent == 0 || migrations.Sent == 0 {
		wrong = append(wrong, fmt.Sprintf("clients sent %d requests without a migration and %d during one", control.Sent, migrations.Sent))
	}
	with, without := share(migrations), share(control)
	if with > blamedFactor*without+blamedSlack {
		wrong = append(wrong, fmt.Sprintf(
			"after API servers were killed, %.1f%% of the requests to them were lost during migrations and %.1f%% without",
			100*with,
			100*without,
		))
	}
	return wrong
}

func share(t tally) float64 {
	if t.BlamedSent == 0 {
		return 0
	}
	return float64(t.BlamedLost) / float64(t.BlamedSent)
}
