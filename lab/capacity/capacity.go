// Package capacity measures what a machine can carry, so that tests and demos choose their load by it. Machines that run labs differ by a
// factor of ten in how fast they start processes and hear timers, and a load that one of them does not notice has another one lose requests.
package capacity

import (
	"context"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"time"
)

// Machine is what was measured of a machine.
type Machine struct {
	// Processors that Go programs may use.
	Processors int `json:"processors"`
	// Starts is how many processes a second it started and ended, one after the other.
	Starts float64 `json:"startsPerSecond"`
	// Delay is by how much it was late to wake a process that waited for a timer, at the 99th percentile.
	Delay time.Duration `json:"delay"`
}

// How long is measured, and at what pace timers are waited for.
const (
	startFor = time.Second
	wakeFor  = time.Second
	tick     = 2 * time.Millisecond
)

// Measure takes about two seconds. The machine should do what it does anyway, and nothing of the load that is to be chosen.
func Measure(ctx context.Context) (Machine, error) {
	starts, err := measureStarts(ctx)
	if err != nil {
		return Machine{}, err
	}
	delay, err := measureDelay(ctx)
	return Machine{Processors: runtime.NumCPU(), Starts: starts, Delay: delay}, err
}

func measureStarts(ctx context.Context) (float64, error) {
	program, err := exec.LookPath("true")
	if err != nil {
		return 0, fmt.Errorf("measure how fast processes start: %w", err)
	}
	began, n := time.Now(), 0
	for time.Since(began) < startFor {
		if err := exec.CommandContext(ctx, program).Run(); err != nil {
			return 0, fmt.Errorf("measure how fast processes start: %w", err)
		}
		n++
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

func measureDelay(ctx context.Context) (time.Duration, error) {
	timer := time.NewTimer(tick)
	defer timer.Stop()
	var late []time.Duration
	for began := time.Now(); time.Since(began) < wakeFor; {
		due := time.Now().Add(tick)
		timer.Reset(tick)
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-timer.C:
			late = append(late, time.Since(due))
		}
	}
	slices.Sort(late)
	return max(0, late[len(late)*99/100]), nil
}

const (
	// requestsPerStart is how many requests a second a machine carries for each process a second that it starts: answered over a connection of
	// their own they cost less than that, and leave room for the cluster.
	requestsPerStart = 1
	// calmDelay is how late timers may be on a machine that has processors to spare.
	calmDelay = 20 * time.Millisecond
)

// Share is which part of a number of requests a second the machine carries: at most 1.
func (m Machine) Share(requests float64) float64 {
	carries := m.Starts * requestsPerStart
	if m.Delay > calmDelay {
		carries /= 2
	}
	if requests <= carries {
		return 1
	}
	return carries / requests
}

func (m Machine) String() string {
	return fmt.Sprintf(
		"%d processors, %.0f processes started a second, timers up to %s late",
		m.Processors,
		m.Starts,
		m.Delay.Round(100*time.Microsecond),
	)
}
