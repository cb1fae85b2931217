package component

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// forecast tells how long builds still take, from the processor time that each takes by the catalogue and what those that are done took here.
type forecast struct {
	begun time.Time

	mu     sync.Mutex
	shares []share // in the order in which they are built
}

// share is what one build is of the whole.
type share struct {
	name string
	cold time.Duration // processor time by the catalogue
	used time.Duration // processor time so far
	pid  int           // of the go command that builds it, if one does
	done bool
}

func newForecast(builds []build) *forecast {
	f := &forecast{begun: time.Now()}
	for _, b := range builds {
		f.shares = append(f.shares, share{name: b.Name, cold: b.Cold})
	}
	return f
}

func (f *forecast) start(name string, pid int) {
	f.change(name, func(s *share) { s.pid = pid })
}

func (f *forecast) end(name string, used time.Duration) {
	f.change(name, func(s *share) { s.pid, s.used, s.done = 0, used, true })
}

func (f *forecast) change(name string, how func(*share)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.shares {
		if f.shares[i].name == name {
			how(&f.shares[i])
		}
	}
}

// open names the builds that are not done: those that are under way, or all before the first began.
func (f *forecast) open() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var waiting, running []string
	for _, s := range f.shares {
		switch {
		case s.pid != 0:
			running = append(running, s.name)
		case !s.done:
			waiting = append(waiting, s.name)
		}
	}
	if len(running) == 0 {
		return strings.Join(waiting, ", ")
	}
	return strings.Join(running, ", ")
}

// left says how long builds still take.
func (f *forecast) left() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range f.shares {
		if s := &f.shares[i]; s.pid != 0 {
			s.used = max(s.used, processorTime(s.pid))
		}
	}
	return roughly(remaining(f.shares, time.Since(f.begun), runtime.NumCPU()))
}

// settled is the processor time from which on the rate at which it is had is known well enough.
const settled = 10 * time.Second

// trust is the processor time that the catalogue's word counts for beside what was measured, which small builds tell little about.
const trust = time.Minute

// remaining is how long builds still take if the rest goes on as what was done: as much slower or faster than the catalogue has it, with as
// much of the processors. A build that took longer than it should is taken to be about to end.
func remaining(shares []share, elapsed time.Duration, processors int) time.Duration {
	expected, taken := trust, trust // of those that are done, by the catalogue and here
	var used time.Duration          // by all
	for _, s := range shares {
		used += s.used
		if s.done && s.used > 0 {
			expected, taken = expected+s.cold, taken+s.used
		}
	}
	pace, rate := float64(taken)/float64(expected), float64(processors)
	if used > settled {
		rate = float64(used) / float64(elapsed)
	}
	var rest float64
	for _, s := range shares {
		if whole := pace * float64(s.cold); !s.done {
			rest += max(whole-float64(s.used), whole/20)
		}
	}
	return time.Duration(rest / rate)
}

func roughly(d time.Duration) string {
	if d < 45*time.Second {
		return "less than a minute"
	}
	return fmt.Sprintf("about %d min", int(d.Round(time.Minute).Minutes()))
}

// ticks are how many parts of a second the kernel counts processor time in, towards programs.
const ticks = 100

// processorTime is what a process has used so far, with its children that have ended; 0 if it cannot be told.
func processorTime(pid int) time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), ") ") // behind the name, which may have blanks
	fields := strings.Fields(rest)
	if len(fields) < 15 {
		return 0
	}
	var sum int
	for _, field := range fields[11:15] { // utime, stime, cutime, cstime
		n, err := strconv.Atoi(field)
		if err != nil {
			return 0
		}
		sum += n
	}
	return time.Duration(sum) * time.Second / ticks
}

// How often progress is told: on terminals in a line that is drawn again, else in one more line.
const (
	redrawn  = time.Second
	repeated = 30 * time.Second
)

// report tells of builds until stop is called.
func (b *Builder) report(f *forecast) (stop func()) {
	interval, tell := repeated, func(line string) { b.say("%s", line) }
	if b.Line != nil {
		interval, tell = redrawn, b.Line
	}
	ticker, done := time.NewTicker(interval), make(chan struct{})
	var ended sync.WaitGroup
	ended.Go(func() {
		for {
			select {
			case <-done:
				return
			case <-ticker.C:
				tell(fmt.Sprintf("building %s for %s, %s left", f.open(), time.Since(f.begun).Round(time.Second), f.left()))
			}
		}
	})
	return func() {
		ticker.Stop()
		close(done)
		ended.Wait()
	}
}
