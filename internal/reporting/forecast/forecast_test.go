package forecast

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// leg is a tier of a run that is played: what each batch of it takes, beside what settles.
type leg struct {
	items       int
	batch, item time.Duration
	pause       time.Duration
}

// played is a run from its beginning to its end.
type played struct {
	work Work
	end  time.Time
}

// play runs legs in batches of a size. Each batch takes up to jitter more or less than its pace
// says.
func play(size int, settle time.Duration, jitter float64, legs ...leg) played {
	random := rand.New(rand.NewPCG(1, uint64(len(legs))))
	p := played{work: Work{Batch: size, Settle: settle}}
	at := time.Unix(1_800_000_000, 0)
	for _, l := range legs {
		p.work.Tiers = append(p.work.Tiers, Tier{Total: l.items, Pause: l.pause})
		for rest := l.items; rest > 0; rest -= size {
			n := min(rest, size)
			cost := float64(l.batch) + float64(l.item)*float64(n)
			cost *= 1 + jitter*(2*random.Float64()-1)
			b := Burst{Start: at, End: at.Add(time.Duration(cost) + settle), Items: n}
			if at = b.End; rest <= size {
				at = at.Add(l.pause)
			}
			p.work.Bursts = append(p.work.Bursts, b)
		}
	}
	p.end = at
	return p
}

// after is the work once so many of its batches are through, and when that was.
func (p played) after(bursts int) (Work, time.Time, float64) {
	w := p.work
	w.Bursts = p.work.Bursts[:bursts]
	w.Tiers = append([]Tier{}, p.work.Tiers...)
	done, total := 0, 0
	for _, b := range w.Bursts {
		done += b.Items
	}
	share := done
	for i := range w.Tiers {
		w.Tiers[i].Done = min(share, w.Tiers[i].Total)
		share -= w.Tiers[i].Done
		total += w.Tiers[i].Total
	}
	now := w.Bursts[bursts-1].End
	if bursts < len(p.work.Bursts) {
		w.Waiting = p.work.Bursts[bursts].Start.Sub(now)
	}
	return w, now, float64(done) / float64(total)
}

// TestWithinAQuarter: from a tenth of the work on, the forecast is within 25 % of what is left, or
// within one batch of it, whatever the tiers, as long as the pace of none comes as a surprise.
func TestWithinAQuarter(t *testing.T) {
	const ms = time.Millisecond
	for name, p := range map[string]played{
		"one tier":                     play(10, 2*time.Second, 0.2, leg{items: 1000, batch: 3 * time.Second, item: 200 * ms}),
		"large batches":                play(500, 0, 0.1, leg{items: 5000, batch: 5 * time.Second, item: 40 * ms}),
		"batches of one":               play(1, 2*time.Second, 0.3, leg{items: 60, batch: 6 * time.Second}),
		"a batch that is not full":     play(40, time.Second, 0.1, leg{items: 405, batch: 2 * time.Second, item: 100 * ms}),
		"settling is nearly all":       play(10, time.Minute, 0.5, leg{items: 300, batch: time.Second, item: 50 * ms}),
		"a slow tier, then a large":    play(10, 2*time.Second, 0.1, leg{items: 60, batch: 12 * time.Second, item: time.Second}, leg{items: 1000, batch: 3 * time.Second, item: 200 * ms}),
		"a fast tier, then a large":    play(10, 0, 0.1, leg{items: 50, item: 100 * ms}, leg{items: 600, item: 500 * ms}),
		"pauses after tiers":           play(10, time.Second, 0.1, leg{items: 100, item: 300 * ms, pause: time.Hour}, leg{items: 300, item: 300 * ms, pause: 30 * time.Minute}, leg{items: 100, item: 300 * ms}),
		"many small tiers":             play(10, 2*time.Second, 0.1, leg{items: 13, batch: 4 * time.Second, item: 100 * ms}, leg{items: 13, batch: 4 * time.Second, item: 100 * ms}, leg{items: 13, batch: 4 * time.Second, item: 100 * ms}, leg{items: 13, batch: 4 * time.Second, item: 100 * ms}),
		"another pace in the middle":   play(20, 0, 0.1, leg{items: 200, item: 300 * ms}, leg{items: 20, item: 900 * ms}, leg{items: 200, item: 300 * ms}),
		"a last tier of the cluster's": play(10, 2*time.Second, 0.1, leg{items: 400, batch: 3 * time.Second, item: 100 * ms}, leg{items: 2, batch: 10 * time.Second}),
	} {
		t.Run(name, func(t *testing.T) {
			asked := 0
			for n := 1; n < len(p.work.Bursts); n++ {
				w, now, share := p.after(n)
				left, known := w.Left(now)
				if share < 0.1 {
					continue
				}
				asked++
				truth, batch := p.end.Sub(now), w.Bursts[n-1].End.Sub(w.Bursts[n-1].Start)
				wrong := time.Duration(math.Abs(float64(left - truth)))
				if !known || wrong > max(truth/4, 2*batch) {
					t.Errorf(
						"at %.0f %%: %v, known: %t; in truth it was %v",
						100*share,
						left.Round(time.Second),
						known,
						truth.Round(time.Second),
					)
				}
			}
			if asked == 0 {
				t.Error("nothing was forecast")
			}
		})
	}
}

// TestInABatch: time that goes by in a batch is taken off, but never more than the batch takes.
func TestInABatch(t *testing.T) {
	p := play(10, 2*time.Second, 0, leg{items: 200, batch: 3 * time.Second, item: 100 * time.Millisecond})
	w, now, _ := p.after(10)
	at, _ := w.Left(now)
	if want := 60 * time.Second; (at - want).Abs() > time.Second {
		t.Fatalf("%v left, want %v", at, want)
	}
	for _, tt := range []struct{ later, want time.Duration }{
		{3 * time.Second, at - 3*time.Second}, {time.Hour, at - 6*time.Second}, {-time.Hour, at},
	} {
		if got, _ := w.Left(now.Add(tt.later)); (got - tt.want).Abs() > time.Second {
			t.Errorf("%v later %v are left, want %v", tt.later, got, tt.want)
		}
	}
}

// TestIdle: what a batch waited for people says nothing of the pace.
func TestIdle(t *testing.T) {
	p := play(10, 0, 0, leg{items: 200, item: time.Second})
	w, now, _ := p.after(4)
	want, _ := w.Left(now)
	last := &w.Bursts[len(w.Bursts)-1]
	last.End, last.Idle = last.End.Add(time.Hour), time.Hour
	if got, known := w.Left(last.End); !known || (got-want).Abs() > time.Second {
		t.Errorf("%v are left, want %v", got, want)
	}
}

// TestUnknown: too little is no ground for a forecast, and nothing left is.
func TestUnknown(t *testing.T) {
	at := time.Unix(0, 0)
	burst := []Burst{{Start: at, End: at.Add(time.Second), Items: 1}}
	for name, tt := range map[string]struct {
		work  Work
		known bool
	}{
		"no work":            {Work{Bursts: burst}, false},
		"nothing done":       {Work{Tiers: []Tier{{Total: 10}}}, false},
		"next to nothing":    {Work{Tiers: []Tier{{Total: 1000, Done: 1}}, Bursts: burst}, false},
		"done by an earlier": {Work{Tiers: []Tier{{Total: 10, Done: 5}}}, false},
		"all done":           {Work{Tiers: []Tier{{Total: 10, Done: 10}}}, true},
		"enough":             {Work{Tiers: []Tier{{Total: 10, Done: 1}, {Total: 10}}, Bursts: burst}, true},
		"empty batches":      {Work{Tiers: []Tier{{Total: 10, Done: 5}}, Bursts: []Burst{{Start: at, End: at}}}, true},
	} {
		if left, known := tt.work.Left(at.Add(time.Second)); known != tt.known || left < 0 {
			t.Errorf("%s: %v, known: %t", name, left, known)
		}
	}
}
