package window

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

func at(t testing.TB, text string) time.Time {
	t.Helper()
	when, err := time.Parse(time.RFC3339, text)
	if err != nil {
		t.Fatal(err)
	}
	return when
}

func w(start, end, zone string, days ...string) v1alpha1.Window {
	return v1alpha1.Window{Start: start, End: end, TimeZone: zone, Days: days}
}

func TestUntil(t *testing.T) {
	const berlin, newYork = "Europe/Berlin", "America/New_York"
	type windows = []v1alpha1.Window
	for _, tt := range []struct {
		name    string
		windows windows
		now     string
		open    bool
		next    string
	}{
		{"no windows", nil, "2026-01-01T00:00:00Z", true, ""},
		{"before", windows{w("09:00", "17:00", "")}, "2026-01-01T08:59:59Z", false, "2026-01-01T09:00:00Z"},
		{"at the start", windows{w("09:00", "17:00", "")}, "2026-01-01T09:00:00Z", true, "2026-01-01T17:00:00Z"},
		{"at the end", windows{w("09:00", "17:00", "")}, "2026-01-01T17:00:00Z", false, "2026-01-02T09:00:00Z"},
		{"in a zone", windows{w("09:00", "17:00", berlin)}, "2026-01-01T08:30:00Z", true, "2026-01-01T16:00:00Z"},
		{"a week ahead", windows{w("22:00", "23:00", "", "Sat")}, "2026-01-03T23:00:00Z", false, "2026-01-10T22:00:00Z"},
		{"over midnight, evening", windows{w("22:00", "04:00", "", "Sat")}, "2026-01-03T23:00:00Z", true, "2026-01-04T04:00:00Z"},
		{"over midnight, morning", windows{w("22:00", "04:00", "", "Sat")}, "2026-01-04T03:59:00Z", true, "2026-01-04T04:00:00Z"},
		{"not the morning of its day", windows{w("22:00", "04:00", "", "Sat")}, "2026-01-03T03:00:00Z", false, "2026-01-03T22:00:00Z"},
		{"until midnight", windows{w("22:00", "00:00", "", "Sat")}, "2026-01-03T22:00:00Z", true, "2026-01-04T00:00:00Z"},
		{"a day and a night", windows{w("06:00", "06:00", "", "Sat")}, "2026-01-03T06:00:00Z", true, "2026-01-04T06:00:00Z"},
		{"always", windows{w("06:00", "06:00", "")}, "2026-01-03T06:00:00Z", true, ""},
		{
			"two that abut",
			windows{w("22:00", "00:00", "", "Sat"), w("00:00", "02:00", "", "Sun")},
			"2026-01-03T23:00:00Z", true, "2026-01-04T02:00:00Z",
		},
		{
			"two zones",
			windows{w("09:00", "10:00", newYork), w("09:00", "10:00", berlin)},
			"2026-01-01T09:00:00Z", false, "2026-01-01T14:00:00Z",
		},
		// Berlin: on 29 March 2026 at 02:00 it is 03:00, on 25 October 2026 at 03:00 it is 02:00
		// again.
		{"clocks forward within", windows{w("01:00", "04:00", berlin)}, "2026-03-29T00:00:00Z", true, "2026-03-29T02:00:00Z"},
		{"opens within the gap", windows{w("02:30", "04:00", berlin)}, "2026-03-29T00:00:00Z", false, "2026-03-29T01:00:00Z"},
		{"closes within the gap", windows{w("01:00", "02:30", berlin)}, "2026-03-29T00:00:00Z", true, "2026-03-29T01:00:00Z"},
		{"left out", windows{w("02:00", "03:00", berlin, "Sun")}, "2026-03-29T00:30:00Z", false, "2026-04-05T00:00:00Z"},
		{"clocks back within", windows{w("01:00", "04:00", berlin)}, "2026-10-25T00:00:00Z", true, "2026-10-25T03:00:00Z"},
		{"twice, first", windows{w("02:00", "02:30", berlin)}, "2026-10-25T00:00:00Z", true, "2026-10-25T00:30:00Z"},
		{"twice, between", windows{w("02:00", "02:30", berlin)}, "2026-10-25T00:30:00Z", false, "2026-10-25T01:00:00Z"},
		{"twice, second", windows{w("02:00", "02:30", berlin)}, "2026-10-25T01:00:00Z", true, "2026-10-25T01:30:00Z"},
		{"closes when the clocks go back", windows{w("02:30", "04:00", berlin)}, "2026-10-25T00:30:00Z", true, "2026-10-25T01:00:00Z"},
		// Samoa had no 30 December 2011, a Friday.
		{"a day left out", windows{w("10:00", "11:00", "Pacific/Apia", "Fri")}, "2011-12-30T00:00:00Z", false, "2012-01-05T20:00:00Z"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			open, next, err := Until(tt.windows, at(t, tt.now))
			if err != nil || open != tt.open {
				t.Errorf("open %v, error %v", open, err)
			}
			var want time.Time
			if tt.next != "" {
				want = at(t, tt.next)
			}
			if !next.Equal(want) {
				t.Errorf("next %s, want %s", next, want)
			}
		})
	}
}

func TestUntilTellsNextInTheZoneOfTheWindow(t *testing.T) {
	_, next, err := Until([]v1alpha1.Window{w("22:00", "23:00", "Europe/Berlin", "Sat")}, at(t, "2026-01-02T00:00:00Z"))
	if got := next.Format("Mon 15:04 MST"); err != nil || got != "Sat 22:00 CET" {
		t.Errorf("got %s, %v", got, err)
	}
}

func TestCheckNamesTheField(t *testing.T) {
	for _, tt := range []struct {
		window v1alpha1.Window
		field  string
	}{
		{w("09:00", "10:00", "", "Sat", "sun"), "days[1]"},
		{w("9:00", "10:00", ""), "start"},
		{w("09:00", "24:00", ""), "end"},
		{w("", "10:00", ""), "start"},
		{w("09:00", "10:00", "Europe/Berlinn"), "timeZone"},
		{w("09:00", "10:00", "Local"), "timeZone"},
		{w("09:00", "10:00", "../../etc/passwd"), "timeZone"},
	} {
		var bad *Error
		if err := Check(tt.window); !errors.As(err, &bad) || bad.Field != tt.field || bad.Problem == "" || bad.Hint == "" {
			t.Errorf("%+v: got %v", tt.window, err)
		}
		if _, _, err := Until([]v1alpha1.Window{tt.window}, time.Now()); !errors.As(err, &bad) {
			t.Errorf("%+v: Until: got %v", tt.window, err)
		}
	}
	if err := Check(w("00:00", "23:59", "Asia/Kathmandu", "Mon", "Sun")); err != nil {
		t.Error(err)
	}
}

func TestStep(t *testing.T) {
	now := at(t, "2026-01-02T00:00:00Z")
	s := NewStep("window/1", []v1alpha1.Window{w("22:00", "23:00", "Europe/Berlin", "Sat")}, func() time.Time { return now })
	if state, err := s.State(t.Context()); err != nil || state != engine.Pending {
		t.Errorf("closed: %v, %v", state, err)
	}
	err := s.Verify(t.Context())
	if err == nil || err.Error() != "outside the maintenance windows until Sat 22:00 CET" || !engine.Retryable(err) {
		t.Errorf("closed: %v", err)
	}
	now = at(t, "2026-01-03T22:00:00Z")
	if err := s.Verify(t.Context()); err == nil || !strings.HasSuffix(err.Error(), "until Sat 10 Jan 22:00 CET") {
		t.Errorf("just closed: %v", err)
	}
	now = at(t, "2026-01-10T21:30:00Z")
	if state, err := s.State(t.Context()); err != nil || state != engine.Done {
		t.Errorf("open: %v, %v", state, err)
	}
	if err := s.Verify(t.Context()); err != nil {
		t.Errorf("open: %v", err)
	}
}

func TestStepOfABadWindowFailsAtOnce(t *testing.T) {
	s := NewStep("window/1", []v1alpha1.Window{w("x", "y", "")}, nil)
	plan := &engine.Plan{Name: "p", Phases: []engine.Phase{{Name: "a", Groups: []engine.Group{{Steps: []engine.Step{s}}}}}}
	var bad *Error
	if err := new(engine.Runner).Run(t.Context(), plan); !errors.As(err, &bad) {
		t.Errorf("got %v", err)
	}
}

// FuzzUntil holds Until against the definition, minute by minute.
func FuzzUntil(f *testing.F) {
	zones := []string{"UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia", "Asia/Kathmandu", "Africa/Cairo"}
	names := []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}
	f.Add(int64(1774746000), uint16(120), uint16(180), uint8(1), uint8(1), uint16(0), uint16(0), uint8(0), uint8(0))
	f.Add(int64(1325203200), uint16(1380), uint16(60), uint8(4), uint8(0), uint16(600), uint16(600), uint8(1), uint8(7))
	f.Fuzz(func(t *testing.T, unix int64, s1, e1 uint16, z1, d1 uint8, s2, e2 uint16, z2, d2 uint8) {
		const decades = 40 * 365 * 24 * 3600
		now := time.Unix(1e9+((unix%decades)+decades)%decades, 0).UTC()
		window := func(s, e uint16, z, d uint8) v1alpha1.Window {
			hhmm := func(m uint16) string { return time.Unix(int64(m%1440)*60, 0).UTC().Format("15:04") }
			out := w(hhmm(s), hhmm(e), zones[int(z)%len(zones)])
			for i, name := range names {
				if d&(1<<i) != 0 {
					out.Days = append(out.Days, name)
				}
			}
			return out
		}
		windows := []v1alpha1.Window{window(s1, e1, z1, d1), window(s2, e2, z2, d2)}
		open, next, err := Until(windows, now)
		if err != nil {
			t.Fatal(err)
		}
		if next.IsZero() {
			if !open {
				t.Fatal("closed for good")
			}
			next = now.AddDate(0, 0, 2) // at least so long
		} else if flipped, _, _ := Until(windows, next); flipped == open || !next.After(now) {
			t.Fatalf("%+v at %s: open %v until %s, and then %v", windows, now, open, next, flipped)
		}
		end := now.Add(min(next.Sub(now), 48*time.Hour))
		for at := now.Truncate(time.Minute).Add(time.Minute); at.Before(end); at = at.Add(time.Minute) {
			if is := byTheWall(windows, at); is != open {
				t.Fatalf("%+v at %s: open %v until %s, but at %s it is %v", windows, now, open, next, at, is)
			}
		}
	})
}

// byTheWall compares what a clock shows, as text.
func byTheWall(windows []v1alpha1.Window, at time.Time) bool {
	for _, w := range windows {
		zone, _ := time.LoadLocation(w.TimeZone)
		local := at.In(zone)
		shown := local.Format("15:04")
		days := strings.Join(w.Days, ",")
		on := func(day time.Weekday) bool { return days == "" || strings.Contains(days, day.String()[:3]) }
		today, yesterday := on(local.Weekday()), on((local.Weekday()+6)%7)
		if w.End > w.Start && today && shown >= w.Start && shown < w.End ||
			w.End <= w.Start && (today && shown >= w.Start || yesterday && shown < w.End) {
			return true
		}
	}
	return false
}
