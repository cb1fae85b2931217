package demo

import (
	"time"

	"github.com/replumb/replumb/internal/verify/probe"
	"github.com/replumb/replumb/lab/traffic"
)

// Seconds are what became of requests second by second, for both sides.
type Seconds struct {
	// Start is the first second, MoveBegan and MoveEnded when replumb's apply began and ended; all in seconds since the Unix epoch.
	Start     int64 `json:"start"`
	MoveBegan int64 `json:"moveBegan"`
	MoveEnded int64 `json:"moveEnded"`
	// Replumb and Control begin at Start and have no holes.
	Replumb []Second `json:"replumb"`
	Control []Second `json:"control"`
}

// Second is what became of the requests that were due in one second. Late ones were answered.
type Second struct {
	Answered int `json:"answered"`
	Late     int `json:"late"`
	Lost     int `json:"lost"`
}

// secondsOf has the same requests as the two sides have, from the baseline on.
func secondsOf(counted map[traffic.Source]probe.Series, t timeline) Seconds {
	return Seconds{
		Start: t.load.From.Unix(), MoveBegan: t.moveBegan.Unix(), MoveEnded: t.moveEnded.Unix(),
		Replumb: perSecond(counted, t.load.From, replumbRequests),
		// Requests to its old address are given up late: the seconds end where not all of them are known.
		Control: untilAllEnd(perSecond(counted, t.load.From, controlRequests), counted, t.load.From, controlRequests),
	}
}

func perSecond(counted map[traffic.Source]probe.Series, since time.Time, chosen func(traffic.Source) bool) []Second {
	var all []Second
	for from, s := range counted {
		if !chosen(from) {
			continue
		}
		for _, w := range s.Between(since, forever()) {
			at := int(w.Start - since.Unix())
			for len(all) <= at {
				all = append(all, Second{})
			}
			all[at].Answered += w.OK
			all[at].Late += w.Late
			all[at].Lost += w.Failed
		}
	}
	return all
}

// untilAllEnd leaves out the seconds that not all of the chosen sources have reported on.
func untilAllEnd(seconds []Second, counted map[traffic.Source]probe.Series, since time.Time, chosen func(traffic.Source) bool) []Second {
	for from, s := range counted {
		if chosen(from) {
			seconds = seconds[:min(len(seconds), max(0, int(s.End().Unix()-since.Unix())))]
		}
	}
	return seconds
}

// forever is after everything.
func forever() time.Time { return time.Unix(1<<40, 0) }
