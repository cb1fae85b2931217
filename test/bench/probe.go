package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/replumb/replumb/internal/verify/echoserver"
	"github.com/replumb/replumb/internal/verify/memtrim"
	"github.com/replumb/replumb/internal/verify/probe"
)

type probing struct {
	program     string
	idle, load  time.Duration
	freezes     int
	freeze      time.Duration
	rate, spare float64
}

// ofProbe measures the prober, as `replumb probe` runs it, against a server that is a process of its own: what it loses when nothing is
// lost, how long it finds a freeze of the server to be, and what it takes of the machine. It prints a table in Markdown.
func ofProbe(flags *flag.FlagSet) func(context.Context) error {
	var o probing
	flags.StringVar(&o.program, "replumb", "bin/replumb", "the binary to measure")
	flags.DurationVar(&o.idle, "idle", 10*time.Minute, "how long to probe what loses nothing; 0 leaves it out")
	flags.DurationVar(&o.load, "load", time.Minute, "how long to measure processor and memory; 0 leaves it out")
	flags.IntVar(&o.freezes, "freezes", 20, "how often to freeze the server; 0 leaves it out")
	flags.DurationVar(&o.freeze, "freeze", 100*time.Millisecond, "how long to freeze it")
	flags.Float64Var(&o.rate, "freeze-rate", 500, "requests a second to a server that freezes")
	flags.Float64Var(&o.spare, "rate", 100, "requests a second otherwise")
	return o.run
}

func (o *probing) run(ctx context.Context) error {
	fmt.Printf("load average at the beginning: %s\n\n| measured | result |\n|---|---|\n", load())
	for _, m := range []struct {
		wanted bool
		do     func(context.Context, *server) error
	}{{o.freezes > 0, o.measureFreezes}, {o.load > 0, o.measureLoad}, {o.idle > 0, o.measureIdle}} {
		if !m.wanted {
			continue
		}
		s, err := startServer(ctx)
		if err != nil {
			return err
		}
		err = m.do(ctx, s)
		s.stop()
		if err != nil {
			return err
		}
	}
	fmt.Printf("\nload average at the end: %s\n", load())
	return nil
}

func tell(what, result string, args ...any) {
	fmt.Printf("| %s | %s |\n", what, fmt.Sprintf(result, args...))
}

// prober is one in a process of its own.
type prober struct {
	cmd   *exec.Cmd
	out   bytes.Buffer
	began time.Time
	// own and files are what it held in memory at most, in MB, once it had started: of its own, and pages of files, its program above all.
	own, files float64
}

func (o *probing) startProber(ctx context.Context, rate float64, duration time.Duration, targets ...string) (*prober, error) {
	args := append([]string{
		"probe", "-o", "json", "--rate", strconv.FormatFloat(rate, 'f', -1, 64), "--duration", duration.String(),
	}, targets...)
	p := &prober{cmd: exec.CommandContext(ctx, o.program, args...), began: time.Now()}
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

func (o *probing) measureIdle(ctx context.Context, s *server) error {
	p, err := o.startProber(ctx, o.spare, o.idle, "http://"+s.HTTP, "udp://"+s.UDP, "stream://"+s.Stream)
	if err != nil {
		return err
	}
	summary, err := p.wait()
	if err != nil {
		return err
	}
	for _, t := range summary.Targets {
		tell(fmt.Sprintf("nothing lost for %v, %v a second: %s", o.idle, o.spare, kindOf(t.Target)),
			"%d sent, **%d failed**, p50 %.1f ms, p99 %.1f ms, longest gap %.0f ms, %d stalls (%d of them mostly the prober's own machine)",
			t.Sent, t.Failed, t.P50, t.P99, t.LongestGap, len(t.Stalls)+t.MoreStalls, ownStalls(t.Stalls))
	}
	tell("the prober of that", "%s", p.cost())
	return nil
}

func kindOf(target string) string {
	kind, _, _ := strings.Cut(target, ":")
	return kind
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

func (o *probing) measureLoad(ctx context.Context, s *server) error {
	p, err := o.startProber(ctx, o.spare, o.load, "http://"+s.HTTP)
	if err != nil {
		return err
	}
	if _, err := p.wait(); err != nil {
		return err
	}
	tell("resident while it probes", "**%.0f MB (%.0f of its own, %.0f of the program's file)**", p.own+p.files, p.own, p.files)
	tell(fmt.Sprintf("%v HTTP requests a second for %v", o.spare, o.load), "%s", p.cost())
	idler := exec.CommandContext(ctx, o.program, "version", "--client")
	if err := idler.Run(); err != nil {
		return err
	}
	_, peak := used(idler.ProcessState)
	tell("`replumb version --client`, for comparison", "%.0f MB resident at most", peak)
	return nil
}

// cost is what the process, which has ended, took, from its very beginning.
func (p *prober) cost() string {
	processor, peak := used(p.cmd.ProcessState)
	share := 100 * processor.Seconds() / time.Since(p.began).Seconds()
	return fmt.Sprintf("**%.1f %%** of a core (%.2f s in all), **%.0f MB** resident at most", share, processor.Seconds(), peak)
}

// watch has a look at what the prober holds, each second until it is told to stop, and keeps the most since it has started.
func (p *prober) watch(stop <-chan struct{}) {
	const start = 2 * time.Second
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		own, files := memory(p.cmd.Process.Pid, "RssAnon"), memory(p.cmd.Process.Pid, "RssFile")
		if time.Since(p.began) >= start && own+files > p.own+p.files {
			p.own, p.files = own, files
		}
	}
}

// freeze is a stretch in which the server was stopped.
type freeze struct{ from, to time.Time }

// measureFreezes stops the server's process and lets it go on, again and again: its kernel goes on accepting connections, as that of a pod
// does whose process is busy.
func (o *probing) measureFreezes(ctx context.Context, s *server) error {
	const between = time.Second
	whole := 2*between + time.Duration(o.freezes)*(between+o.freeze)
	p, err := o.startProber(ctx, o.rate, whole+between, "http://"+s.HTTP)
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

func (o *probing) tellFreezes(freezes []freeze, t probe.TargetSummary) {
	var off []time.Duration
	for _, f := range freezes {
		for _, s := range t.Stalls {
			if s.Start.Before(f.to) && s.End.After(f.from) {
				off = append(off, s.Length.Duration()-f.to.Sub(f.from))
			}
		}
	}
	what := fmt.Sprintf("server frozen %d times for %v, %v a second", len(freezes), o.freeze, o.rate)
	tell(what+": seen", "**%d**, and %d other stalls; %d of %d requests failed", len(off), len(t.Stalls)-len(off), t.Failed, t.Sent)
	if len(off) == 0 {
		return
	}
	slices.Sort(off)
	ms := func(d time.Duration) string { return fmt.Sprintf("%+.1f ms", float64(d.Microseconds())/1000) }
	tell(what+": length off by", "%s to %s, median **%s**", ms(off[0]), ms(off[len(off)-1]), ms(off[len(off)/2]))
	far := 0
	for _, d := range off {
		if d < -10*time.Millisecond || d > 10*time.Millisecond {
			far++
		}
	}
	tell(what+": off by more than 10 ms", "%d", far)
}

// server is one in a process of its own, and where it listens.
type server struct {
	HTTP, Stream, UDP string

	cmd   *exec.Cmd
	stdin io.Closer
}

// serveCommand has this program be the server.
const serveCommand = "serve"

// ofServer serves until the process that began it has gone.
func ofServer(*flag.FlagSet) func(context.Context) error {
	return func(ctx context.Context) error {
		var s echoserver.Server
		if err := s.Listen(ctx, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"); err != nil {
			return err
		}
		web, tcp, udp := s.Addresses()
		if err := json.NewEncoder(os.Stdout).Encode(server{HTTP: web.String(), Stream: tcp.String(), UDP: udp.String()}); err != nil {
			return err
		}
		ctx, stop := context.WithCancel(ctx)
		go func() { defer stop(); _, _ = io.Copy(io.Discard, os.Stdin) }()
		return s.Serve(ctx)
	}
}

func startServer(ctx context.Context) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &server{cmd: exec.CommandContext(ctx, self, serveCommand)}
	s.cmd.Stderr = os.Stderr
	if s.stdin, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	if err := json.NewDecoder(out).Decode(s); err != nil {
		s.stop()
		return nil, fmt.Errorf("the server did not start: %w", err)
	}
	return s, nil
}

func (s *server) stop() {
	_ = s.stdin.Close()
	_ = s.cmd.Wait()
}
