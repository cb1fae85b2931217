package cluster

import (
	"testing"
	"time"
)

func TestBehind(t *testing.T) {
	date := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := date.Add
	for name, tt := range map[string]struct {
		asked, answered time.Time
		want            time.Duration
	}{
		"right":                {at(300 * time.Millisecond), at(400 * time.Millisecond), 0},
		"ahead by less":        {at(1400 * time.Millisecond), at(1500 * time.Millisecond), -950 * time.Millisecond},
		"behind by minutes":    {at(-5 * time.Minute), at(-5*time.Minute + 100*time.Millisecond), 5*time.Minute + 450*time.Millisecond},
		"ahead by minutes":     {at(5 * time.Minute), at(5*time.Minute + 100*time.Millisecond), -5*time.Minute + 450*time.Millisecond},
		"a slow answer":        {at(-3 * time.Second), at(2 * time.Second), 0},
		"the end of a second":  {at(time.Second), at(time.Second), 0},
		"its very beginning":   {at(0), at(0), 0},
		"just before":          {at(-2 * time.Millisecond), at(-time.Millisecond), 501500 * time.Microsecond},
		"slow and far behind":  {at(-time.Hour), at(-time.Hour + 10*time.Second), time.Hour - 4500*time.Millisecond},
		"answered, then asked": {at(time.Minute), at(time.Minute), -time.Minute + 500*time.Millisecond},
	} {
		if got := behind(tt.asked, tt.answered, date); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}
