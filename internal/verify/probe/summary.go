package probe

import (
	"fmt"
	"time"

	"github.com/replumb/replumb/internal/engine/fault"
)

// Ledger keeps the accounts of all targets of a Config.
type Ledger struct {
	begin    time.Time
	names    []string
	accounts map[string]*Account
}

// NewLedger begins with nothing.
func NewLedger(config Config) *Ledger {
	l := &Ledger{begin: time.Now(), accounts: map[string]*Account{}}
	for _, target := range config.Targets {
		l.names = append(l.names, target.Name)
		l.accounts[target.Name] = &Account{}
	}
	return l
}

// Add adds the next window of any target.
func (l *Ledger) Add(w Window) error {
	account := l.accounts[w.Target]
	if account == nil {
		return fmt.Errorf("window of target %s, which is not probed", w.Target)
	}
	return account.Add(w)
}

// Summary is what probing has come to.
type Summary struct {
	Start   time.Time       `json:"start"`
	End     time.Time       `json:"end"`
	Sent    int             `json:"sent"`
	Failed  int             `json:"failed"`
	Budget  int             `json:"budget"`
	Targets []TargetSummary `json:"targets"`
}

// TargetSummary is what the requests to one target met with. Latencies are of good answers, from when they were due.
type TargetSummary struct {
	Target     string        `json:"target"`
	Sent       int           `json:"sent"`
	OK         int           `json:"ok"`
	Failed     int           `json:"failed"`
	Reconnects int           `json:"reconnects,omitempty"`
	Errors     map[Class]int `json:"errors,omitempty"`
	P50        Milliseconds  `json:"p50Ms"`
	P90        Milliseconds  `json:"p90Ms"`
	P99        Milliseconds  `json:"p99Ms"`
	Max        Milliseconds  `json:"maxMs"`
	// LongestGap is the longest time without a good answer; it contains the time between two requests.
	LongestGap Milliseconds `json:"longestGapMs"`
	// LongestStall is that of Stalls; Late is how late the prober itself was at most.
	LongestStall Milliseconds `json:"longestStallMs"`
	Late         Milliseconds `json:"lateMs,omitempty"`
	// Losses and Stalls are the first ones.
	Losses     []LossSummary  `json:"losses"`
	MoreLosses int            `json:"moreLosses,omitempty"`
	Stalls     []StallSummary `json:"stalls"`
	MoreStalls int            `json:"moreStalls,omitempty"`
}

// LossSummary is a Loss.
type LossSummary struct {
	Start  time.Time     `json:"start"`
	End    time.Time     `json:"end"`
	Failed int           `json:"failed"`
	Error  string        `json:"error"`
	Errors map[Class]int `json:"errors"`
}

// StallSummary is a Stall.
type StallSummary struct {
	Start  time.Time    `json:"start"`
	End    time.Time    `json:"end"`
	Length Milliseconds `json:"ms"`
	Late   Milliseconds `json:"lateMs,omitempty"`
}

// Milliseconds is a duration that is written as a number of milliseconds.
type Milliseconds float64

func milliseconds(d time.Duration) Milliseconds {
	return Milliseconds(d.Round(time.Microsecond).Seconds() * 1000)
}

// Duration of that many milliseconds.
func (m Milliseconds) Duration() time.Duration {
	return time.Duration(float64(m) * float64(time.Millisecond))
}

// Summary of what was added so far.
func (l *Ledger) Summary(budget int) Summary {
	summary := Summary{Start: l.begin, Budget: budget}
	for _, name := range l.names {
		account := l.accounts[name]
		if w, ok := account.Latest(); ok && w.EndTime().After(summary.End) {
			summary.End = w.EndTime()
		}
		target := account.summary(name)
		summary.Sent += target.Sent
		summary.Failed += target.Failed
		summary.Targets = append(summary.Targets, target)
	}
	return summary
}

func (a *Account) summary(name string) TargetSummary {
	stats := a.Stats()
	percentile := func(q float64) Milliseconds { return milliseconds(stats.Percentile(q)) }
	s := TargetSummary{
		Target: name, Sent: stats.Sent, OK: stats.OK, Failed: stats.Failed, Reconnects: stats.Reconnects, Errors: stats.Errors,
		P50: percentile(50), P90: percentile(90), P99: percentile(99), Max: percentile(100),
		LongestGap: milliseconds(stats.LongestGap), LongestStall: milliseconds(stats.LongestStall), Late: milliseconds(stats.Late),
		Losses: []LossSummary{}, MoreLosses: a.moreLosses, Stalls: []StallSummary{}, MoreStalls: a.moreStalls,
	}
	for _, l := range a.losses {
		s.Losses = append(s.Losses, LossSummary{Start: l.Start, End: l.End, Failed: l.Failed, Error: l.Example, Errors: l.Errors})
	}
	for _, l := range a.stalls {
		s.Stalls = append(s.Stalls, StallSummary{
			Start: l.StartTime(), End: l.EndTime(), Length: milliseconds(l.Duration()), Late: milliseconds(l.LateBy()),
		})
	}
	return s
}

// LossError says that more was lost than the budget allows.
type LossError struct {
	Sent, Failed, Budget int
}

func (e *LossError) Error() string {
	return fmt.Sprintf("%d of %d requests failed; the budget is %d", e.Failed, e.Sent, e.Budget)
}

// ExitCode implements fault.Coder.
func (*LossError) ExitCode() int { return fault.ExitBudget }

// Err is a *LossError if more failed than the budget allows. A target that nothing was sent to is an error too: silence proves nothing.
func (s Summary) Err() error {
	if s.Failed > s.Budget {
		return &LossError{Sent: s.Sent, Failed: s.Failed, Budget: s.Budget}
	}
	for _, target := range s.Targets {
		if target.Sent == 0 {
			return fmt.Errorf("no request was sent to %s", target.Target)
		}
	}
	return nil
}
