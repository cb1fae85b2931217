// Package forecast says how long work that goes on in batches will take. It is pure.
package forecast

import (
	"math"
	"slices"
	"time"
)

// Burst is a batch that is through: how many items it took on, and how long.
type Burst struct {
	Start, End time.Time
	Items      int
	// Idle is the part spent on waits that say nothing of the pace: people, a window, the pause
	// after a tier.
	Idle time.Duration
}

func (b Burst) active() float64 { return max(0, (b.End.Sub(b.Start) - b.Idle).Seconds()) }

// Tier is a part of the work. Parts are done one after the other, and no batch is of two.
type Tier struct {
	Total, Done int
	Pause       time.Duration
}

func (t Tier) left() int { return max(0, t.Total-t.Done) }

// Work is what there is to do, and how it went so far.
type Work struct {
	// Tiers in order. The sum of their Done is that of all bursts, forgotten ones included.
	Tiers []Tier
	// Batch is how many items a batch has at most. Zero takes that of the bursts.
	Batch int
	// Settle is how long nothing is done after each batch.
	Settle time.Duration
	// Bursts, oldest first. The last ones end at the present state.
	Bursts []Burst
	// Begun is when the batch in hand began. Zero is where the last burst ended.
	Begun time.Time
	// Waiting is the rest of a pause after a tier that has begun.
	Waiting time.Duration
}

const (
	// least is from which share of the work on there is a forecast.
	least = 0.05
	// halfLife is after how many batches what a batch says of the pace counts half.
	halfLife = 12
	// elsewhere is the weight of another tier's batch beside one of the tier asked for.
	elsewhere = 0.02
)

// Left is how long the remaining work takes, waits aside; known is false while too little is done
// to tell. A tier that has not begun goes at the pace of all before it.
func (w Work) Left(now time.Time) (left time.Duration, known bool) {
	total, done := 0, 0
	for _, t := range w.Tiers {
		total, done = total+t.Total, done+min(t.Done, t.Total)
	}
	switch {
	case total == 0:
		return 0, false
	case done >= total:
		return 0, true
	case float64(done) < least*float64(total) || len(w.Bursts) == 0:
		return 0, false
	}
	seconds, first := 0.0, 0.0
	tiers := w.tiersOfBursts()
	for i, t := range w.Tiers {
		if t.left() == 0 {
			continue
		}
		pace := w.pace(tiers, i)
		for rest := t.left(); rest > 0; rest -= w.batch() {
			cost := pace.cost(min(rest, w.batch())) + w.Settle.Seconds()
			if first == 0 {
				first = cost
			}
			seconds += cost
		}
		seconds += t.Pause.Seconds()
	}
	seconds += w.Waiting.Seconds() - min(w.inHand(now).Seconds(), first)
	return time.Duration(seconds * float64(time.Second)), true
}

func (w Work) inHand(now time.Time) time.Duration {
	begun := w.Begun
	switch {
	case w.Waiting > 0:
		return 0
	case begun.IsZero():
		begun = w.Bursts[len(w.Bursts)-1].End
	}
	return max(0, now.Sub(begun))
}

func (w Work) batch() int {
	if w.Batch > 0 {
		return w.Batch
	}
	most := 1
	for _, b := range w.Bursts {
		most = max(most, b.Items)
	}
	return most
}

// tiersOfBursts finds each burst's tier, from the last one back: earlier runs' may be forgotten.
func (w Work) tiersOfBursts() []int {
	of := make([]int, len(w.Bursts))
	tier := len(w.Tiers) - 1
	for tier > 0 && w.Tiers[tier].Done == 0 {
		tier--
	}
	left := w.Tiers[tier].Done
	for i := len(w.Bursts) - 1; i >= 0; i-- {
		for left <= 0 && tier > 0 {
			tier--
			left = w.Tiers[tier].Done
		}
		of[i] = tier
		left -= w.Bursts[i].Items
	}
	return of
}

type pace struct{ batch, item float64 }

func (p pace) cost(items int) float64 { return p.batch + p.item*float64(items) }

// pace of a tier weighs its own batches and the latest ones most.
func (w Work) pace(of []int, tier int) pace {
	seen := slices.Contains(of, tier)
	var sum, items, squares, cost, product float64
	for i, b := range w.Bursts {
		if b.Items == 0 {
			continue
		}
		weight := math.Exp2(-float64(len(w.Bursts)-1-i) / halfLife)
		if seen && of[i] != tier {
			weight *= elsewhere
		}
		n, took := float64(b.Items), max(0, b.active()-w.Settle.Seconds())
		sum, items, squares = sum+weight, items+weight*n, squares+weight*n*n
		cost, product = cost+weight*took, product+weight*n*took
	}
	if sum == 0 {
		return pace{}
	}
	meanItems, meanCost := items/sum, cost/sum
	spread := squares/sum - meanItems*meanItems
	// Batches of about the same size say nothing of how the cost is made up.
	if spread < 0.02*meanItems*meanItems {
		return pace{item: meanCost / meanItems}
	}
	slope := (product/sum - meanItems*meanCost) / spread
	slope = min(max(0, slope), meanCost/meanItems)
	return pace{batch: meanCost - slope*meanItems, item: slope}
}
