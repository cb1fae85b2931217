// Package window knows when the maintenance windows of a Migration are open.
package window

import (
	"fmt"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // for machines and images without a time zone database

	"github.com/replumb/replumb/api/v1alpha1"
)

// horizon bounds the search: clock changes may skip a weekly window, and a time zone a whole day.
const horizon = 22

// Error says which field of a window is wrong, and what to do.
type Error struct {
	Field   string
	Problem string
	Hint    string
}

func (e *Error) Error() string { return e.Field + ": " + e.Problem }

type rule struct {
	days       [7]bool
	start, end time.Duration // since midnight, by the clock on the wall
	zone       *time.Location
}

// Check says what is wrong with a window, by an *Error.
func Check(w v1alpha1.Window) error {
	_, err := parse(w)
	return err
}

func parse(w v1alpha1.Window) (rule, error) {
	r := rule{}
	for i, day := range w.Days {
		n := slices.Index([]string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}, day)
		if n < 0 {
			return r, &Error{
				Field: fmt.Sprintf("days[%d]", i), Problem: fmt.Sprintf("%q is not a day", day),
				Hint: "use Mon, Tue, Wed, Thu, Fri, Sat, Sun",
			}
		}
		r.days[n] = true
	}
	if len(w.Days) == 0 {
		r.days = [7]bool{true, true, true, true, true, true, true}
	}
	var err error
	if r.start, err = clock("start", w.Start); err != nil {
		return r, err
	}
	if r.end, err = clock("end", w.End); err != nil {
		return r, err
	}
	// "Local" would mean another time on each machine that replumb runs on.
	if r.zone, err = time.LoadLocation(w.TimeZone); err != nil || w.TimeZone == "Local" {
		return r, &Error{
			Field: "timeZone", Problem: fmt.Sprintf("%q is not a time zone", w.TimeZone),
			Hint: "use a name of the IANA database, such as Europe/Berlin or UTC",
		}
	}
	return r, nil
}

func clock(field, text string) (time.Duration, error) {
	t, err := time.Parse("15:04", text)
	if err != nil || len(text) != len("15:04") {
		return 0, &Error{
			Field: field, Problem: fmt.Sprintf("%q is not a time of day", text),
			Hint: "write it as HH:MM from 00:00 to 23:59; a window until midnight ends at 00:00",
		}
	}
	return time.Duration(t.Hour())*time.Hour + time.Duration(t.Minute())*time.Minute, nil
}

// open goes by the wall clock: an hour that comes twice is open twice, and a skipped one never.
func (r rule) open(t time.Time) bool {
	t = t.In(r.zone)
	now := wall(t).Sub(midnight(t))
	today, yesterday := r.days[t.Weekday()], r.days[(t.Weekday()+6)%7]
	if r.end > r.start {
		return today && now >= r.start && now < r.end
	}
	return today && now >= r.start || yesterday && now < r.end
}

// wall is local time as if it were UTC, so that days have 24 hours.
func wall(t time.Time) time.Time {
	_, offset := t.Zone()
	return t.UTC().Add(time.Duration(offset) * time.Second)
}

// midnight is the start of the local day, as if it were UTC.
func midnight(t time.Time) time.Time {
	year, month, day := t.Date()
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// changes are the later moments at which the rule may open or close: at start, at end, and at clock
// changes.
func (r rule) changes(now time.Time) []time.Time {
	var out []time.Time
	until := now.AddDate(0, 0, horizon)
	for at := now.In(r.zone); at.Before(until); {
		_, offset := at.Zone()
		_, next := at.ZoneBounds()
		if next.IsZero() || next.After(until) {
			next = until
		} else {
			out = append(out, next)
		}
		last := wall(next)
		for day := midnight(at); !day.After(last); day = day.AddDate(0, 0, 1) {
			for _, edge := range []time.Duration{r.start, r.end} {
				t := day.Add(edge).Add(-time.Duration(offset) * time.Second).In(r.zone)
				if !t.Before(at) && t.Before(next) {
					out = append(out, t)
				}
			}
		}
		at = next
	}
	return out
}

// Until says whether now is within a window; next is when one opens, or when the open ones close
// without a gap, and zero if that takes over three weeks. Without windows it is always open. Errors
// are of type *Error.
func Until(windows []v1alpha1.Window, now time.Time) (open bool, next time.Time, err error) {
	var rules []rule
	var moments []time.Time
	for _, w := range windows {
		r, err := parse(w)
		if err != nil {
			return false, time.Time{}, err
		}
		rules = append(rules, r)
		moments = append(moments, r.changes(now)...)
	}
	if len(rules) == 0 {
		return true, time.Time{}, nil
	}
	isOpen := func(t time.Time) bool {
		return slices.ContainsFunc(rules, func(r rule) bool { return r.open(t) })
	}
	open = isOpen(now)
	slices.SortStableFunc(moments, time.Time.Compare)
	for _, t := range moments {
		if t.After(now) && isOpen(t) != open {
			return open, t, nil
		}
	}
	if !open {
		return false, time.Time{}, fmt.Errorf("no window opens in the next %d days: %s", horizon, describe(windows))
	}
	return true, time.Time{}, nil
}

func describe(windows []v1alpha1.Window) string {
	var all []string
	for _, w := range windows {
		all = append(all, strings.TrimSpace(strings.Join(w.Days, ",")+" "+w.Start+"-"+w.End+" "+w.TimeZone))
	}
	return strings.Join(all, "; ")
}
