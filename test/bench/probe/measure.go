package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/replumb/replumb/internal/verify/memtrim"
	"github.com/replumb/replumb/internal/verify/probe"
)

// prober is one in a process of its own.
type prober struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	began time.Time
	// held is what it had in memory at most, once it had started.
	held memory
}

func (o options) startProber(ctx context.Context, rate float64, duration time.Duration, targets ...string) (*prober, error) {
	args := append([]string{
		"probe", "-o", "json", "--rate", strconv.FormatFloat(rate, 'f', -1, 64), "--duration", duration.String(),
	}, targets...)
	p := &prober{cmd: exec.CommandContext(ctx, o.replumb, args...), began: time.Now()}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, os.Stderr
	p.cmd.Env = os.Environ()
	for _, v := range memtrim.Settings() { // it is measured as agents run
		p.cmd.Env = append(p.cmd.Env, v.Name+"="+v.Value)
	}
	return p, p.cmd.Start()
}

// wait for the end, and what came of it. That something was lost is a result too.
func (p *prober) wait() (probe.Summary, error) {
	var exit *exec.ExitError
	watched, stop := make(chan struct{}), make(chan struct{})
	go func() { defer close(watched); p.watch(stop) }()
	err := p.cmd.Wait()
	close(stop)
	<-watched
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != 4) {
		return probe.Summary{}, fmt.Errorf("replumb probe: %w", err)
	}
	lines := bytes.Split(bytes.TrimSpace(p.out.Bytes()), []byte("\n"))
	var last struct{ Summary *probe.Summary }
	if err := json.Unmarshal(lines[len(lines)-1], &last); err != nil || last.Summary == nil {
		return probe.Summary{}, fmt.Errorf("the last line is no summary: %.100s", lines[len(lines)-1])
	}
	return *last.Summary, nil
}

func (o options) measureIdle(ctx context.Context) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	p, err := o.startProber(ctx, o.spare, o.idle, "http://"+s.at.HTTP, "udp://"+s.at.UDP, "stream://"+s.at.Stream)
	if err != nil {
		return err
	}
	summary, err := p.wait()
	if err != nil {
		return err
	}
	for _, t := range summary.Targets {
		row(fmt.Sprintf("nothing lost for %v, %v a second: %s", o.idle, o.spare, kindOf(t.Target)),
			"%d sent, **%d failed**, p50 %.1f ms, p99 %.1f ms, longest gap %.0f ms, %d stalls (%d of them mostly the prober's own machine)",
			t.Sent, t.Failed, t.P50, t.P99, t.LongestGap, len(t.Stalls)+t.MoreStalls, ownStalls(t.Stalls))
	}
	row("the prober of that", "%s", p.cost())
	return nil
}

func kindOf(target string) string {
	kind, _, _ := bytes.Cut([]byte(target), []byte(":"))
	return string(kind)
}

// ownStalls are those during more than half of which the prober itself was late.
func ownStalls(stalls []probe.StallSummary) int {
	n := 0
	for _, s := range stalls {
		if s.Behind > s.Length/2 {
			n++
		}
	}
	return n
}

func (o options) measureLoad(ctx context.Context) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	p, err := o.startProber(ctx, o.spare, o.load, "http://"+s.at.HTTP)
	if err != nil {
		return err
	}
	if _, err := p.wait(); err != nil {
		return err
	}
	row("resident while it probes", "**%s**", p.held)
	row(fmt.Sprintf("%v HTTP requests a second for %v", o.spare, o.load), "%s", p.cost())
	idler := &prober{cmd: exec.CommandContext(ctx, o.replumb, "version"), began: time.Now()}
	if err := idler.cmd.Run(); err != nil {
		return err
	}
	row("`replumb version`, for comparison", "%.0f MB resident at most", idler.resident())
	return nil
}

// cost is what the process, which has ended, took, from its very beginning.
func (p *prober) cost() string {
	usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return "unknown"
	}
	used := time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	share := 100 * used.Seconds() / time.Since(p.began).Seconds()
	return fmt.Sprintf("**%.1f %%** of a core (%.2f s in all), **%.0f MB** resident at most", share, used.Seconds(), p.resident())
}

// resident is the most memory that it had, in MB, the pages of the program's file included.
func (p *prober) resident() float64 {
	usage, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0
	}
	return float64(usage.Maxrss) / 1024
}

// freeze is a stretch in which the server was stopped.
type freeze struct{ from, to time.Time }

// measureFreezes stops the server's process and lets it go on, again and again: its kernel goes on accepting connections, as that of a pod
// does whose process is busy.
func (o options) measureFreezes(ctx context.Context) error {
	s, err := startServer(ctx)
	if err != nil {
		return err
	}
	defer s.stop()
	const between = time.Second
	whole := 2*between + time.Duration(o.freezes)*(between+o.freeze)
	p, err := o.startProber(ctx, o.rate, whole+between, "http://"+s.at.HTTP)
	if err != nil {
		return err
	}
	var freezes []freeze
	tick := time.NewTimer(2 * between)
	for range o.freezes {
		<-tick.C
		f, err := s.freeze(o.freeze)
		if err != nil {
			return err
		}
		freezes = append(freezes, f)
		tick.Reset(between)
	}
	summary, err := p.wait()
	if err != nil {
		return err
	}
	o.tellFreezes(freezes, summary.Targets[0])
	return nil
}

func (s *server) freeze(d time.Duration) (freeze, error) {
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return freeze{}, err
	}
	f := freeze{from: time.Now()}
	<-time.After(d)
	f.to = time.Now()
	return f, s.cmd.Process.Signal(syscall.SIGCONT)
}

func (o options) tellFreezes(freezes []freeze, t probe.TargetSummary) {
	var off []time.Duration
	for _, f := range freezes {
		for _, s := range t.Stalls {
			if s.Start.Before(f.to) && s.End.After(f.from) {
				off = append(off, s.Length.Duration()-f.to.Sub(f.from))
			}
		}
	}
	what := fmt.Sprintf("server frozen %d times for %v, %v a second", len(freezes), o.freeze, o.rate)
	row(what+": seen", "**%d**, and %d other stalls; %d of %d requests failed", len(off), len(t.Stalls)-len(off), t.Failed, t.Sent)
	if len(off) == 0 {
		return
	}
	slices.Sort(off)
	ms := func(d time.Duration) string { return fmt.Sprintf("%+.1f ms", float64(d.Microseconds())/1000) }
	row(what+": length off by", "%s to %s, median **%s**", ms(off[0]), ms(off[len(off)-1]), ms(off[len(off)/2]))
	far := 0
	for _, d := range off {
		if d < -10*time.Millisecond || d > 10*time.Millisecond {
			far++
		}
	}
	row(what+": off by more than 10 ms", "%d", far)
}
