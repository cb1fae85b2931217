package probe

// Account adds up the windows of one target as they come, and keeps none of them.
type Account struct {
	stats  Stats
	losses []Loss
	stalls []Stall
	last   Interval
	// windows is how many there were, lossy whether the latest one had failures.
	windows uint64
	lossy   bool
	// moreLosses and moreStalls had no room.
	moreLosses, moreStalls int
}

// keptStretches bounds the losses and stalls of an Account: probing may go on for weeks.
const keptStretches = 1000

// Add adds the next window, or fails with ErrIncomplete if it is not the next one.
func (a *Account) Add(w Interval) error {
	if err := follows(a.last, a.windows, w); err != nil {
		return err
	}
	if err := a.stats.add(w); err != nil {
		return err
	}
	a.addLoss(w)
	for _, stall := range w.Stalls {
		if len(a.stalls) == keptStretches {
			a.moreStalls++
			continue
		}
		a.stalls = append(a.stalls, stall)
	}
	a.windows, a.last = a.windows+1, w
	return nil
}

func (a *Account) addLoss(w Interval) {
	begins := !a.lossy
	a.lossy = w.Failed > 0
	switch {
	case w.Failed == 0:
	case !begins && a.moreLosses == 0:
		a.losses[len(a.losses)-1].add(w)
	case begins && len(a.losses) < keptStretches:
		a.losses = append(a.losses, newLoss(w))
	case begins:
		a.moreLosses++
	}
}

// Stats are what all windows so far add up to.
func (a *Account) Stats() Stats {
	total := Merge(a.stats)
	if a.windows > 0 {
		total.LongestGap = max(total.LongestGap, a.last.OpenGap())
	}
	return total
}

func (a *Account) Latest() (w Interval, ok bool) { return a.last, a.windows > 0 }
