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

func (l *Ledger) Add(w Interval) error {
	account := l.accounts[w.Target]
	if account == nil {
		return fmt.Errorf("window of target %s, which is not probed", w.Target)
	}
	return account.Add(w)
}

// Summary is what probing has come to.
type Summary struct {
	Start  time.Time `json:"start"`
	End    time.Time `json:"end"`
	Sent   int       `json:"sent"`
	Failed int       `json:"failed"`
	// Late and NotMeasured are those of all targets.
	Late        int `json:"late"`
	NotMeasured int `json:"notMeasured"`

	Budget  int             `json:"budget"`
	Targets []TargetSummary `json:"targets"`
}

// TargetSummary is one target's. Latencies are of good answers, from their due time.
type TargetSummary struct {
	Target string `json:"target"`
	Sent   int    `json:"sent"`
	OK     int    `json:"ok"`
	Failed int    `json:"failed"`
	// Late answers were good. NotMeasured requests say nothing of the target.
	Late        int           `json:"late"`
	NotMeasured int           `json:"notMeasured"`
	Reconnects  int           `json:"reconnects,omitempty"`
	Errors      map[Class]int `json:"errors,omitempty"`
	P50         Milliseconds  `json:"p50Ms"`
	P90         Milliseconds  `json:"p90Ms"`
	P99         Milliseconds  `json:"p99Ms"`
	Max         Milliseconds  `json:"maxMs"`
	// LongestGap is the longest time without a good answer, pauses between requests included.
	LongestGap Milliseconds `json:"longestGapMs"`
	// LongestStall is that of Stalls; Behind is the prober's own delay.
	LongestStall Milliseconds `json:"longestStallMs"`
	Behind       Milliseconds `json:"behindMs,omitempty"`
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
	Behind Milliseconds `json:"behindMs,omitempty"`
}

// Milliseconds is a duration that is written as a number of milliseconds.
type Milliseconds float64

func milliseconds(d time.Duration) Milliseconds {
	return Milliseconds(d.Round(time.Microsecond).Seconds() * 1000)
}

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
		summary.Late += target.Late
		summary.NotMeasured += target.NotMeasured
		summary.Targets = append(summary.Targets, target)
	}
	return summary
}

func (a *Account) summary(name string) TargetSummary {
	stats := a.Stats()
	percentile := func(q float64) Milliseconds { return milliseconds(stats.Percentile(q)) }
	s := TargetSummary{
		Target:       name,
		Sent:         stats.Sent,
		OK:           stats.OK,
		Failed:       stats.Failed,
		Late:         stats.Late,
		NotMeasured:  stats.NotMeasured,
		Reconnects:   stats.Reconnects,
		Errors:       stats.Errors,
		P50:          percentile(50),
		P90:          percentile(90),
		P99:          percentile(99),
		Max:          percentile(100),
		LongestGap:   milliseconds(stats.LongestGap),
		LongestStall: milliseconds(stats.LongestStall),
		Behind:       milliseconds(stats.Behind),
		Losses:       []LossSummary{},
		MoreLosses:   a.moreLosses,
		Stalls:       []StallSummary{},
		MoreStalls:   a.moreStalls,
	}
	for _, l := range a.losses {
		s.Losses = append(s.Losses, LossSummary{Start: l.Start, End: l.End, Failed: l.Failed, Error: l.Example, Errors: l.Errors})
	}
	for _, l := range a.stalls {
		s.Stalls = append(s.Stalls, StallSummary{
			Start: l.StartTime(), End: l.EndTime(), Length: milliseconds(l.Duration()), Behind: milliseconds(l.BehindFor()),
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

func (*LossError) ExitCode() int { return fault.ExitBudget }

// NotMeasuredError says that too many requests were not measured.
type NotMeasuredError struct {
	Sent, NotMeasured int
}

func (e *NotMeasuredError) Error() string {
	return fmt.Sprintf(
		"the machine that requests come from is too busy or too slow to measure losses: %d of %d requests could not be measured",
		e.NotMeasured, e.Sent+e.NotMeasured,
	)
}

func (*NotMeasuredError) ExitCode() int { return fault.ExitNotMeasured }

func (*NotMeasuredError) Advice() string {
	return "end what else runs on that machine, send fewer requests a second, or use another one"
}

const measuredShare = 1000

// Measured is a *NotMeasuredError if more than one in a thousand requests could not be measured.
func Measured(sent, notMeasured int) error {
	if notMeasured*measuredShare > sent+notMeasured {
		return &NotMeasuredError{Sent: sent, NotMeasured: notMeasured}
	}
	return nil
}

// Err is a *LossError beyond the budget, else a *NotMeasuredError if too much is unknown. A target
// without requests is an error: silence proves nothing.
func (s Summary) Err() error {
	if s.Failed > s.Budget {
		return &LossError{Sent: s.Sent, Failed: s.Failed, Budget: s.Budget}
	}
	if err := Measured(s.Sent, s.NotMeasured); err != nil {
		return err
	}
	for _, target := range s.Targets {
		if target.Sent == 0 {
			return fmt.Errorf("no request was sent to %s", target.Target)
		}
	}
	return nil
}
