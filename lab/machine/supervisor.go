package machine

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Restart delays: short at first, since at start-up programs wait for one another by failing; doubling, so that a
// program that cannot run does not take the processor from those that can; and short again after a good while.
const (
	firstDelay = 200 * time.Millisecond
	maxDelay   = 5 * time.Second
	goodRun    = 10 * time.Second
	stopGrace  = 5 * time.Second
)

// supervisor runs programs and restarts each that ends.
type supervisor struct {
	logDir string

	mu       sync.Mutex
	programs map[string]*running
}

// running is one program under supervision.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	status Status
}

func newSupervisor(logDir string) *supervisor {
	return &supervisor{logDir: logDir, programs: map[string]*running{}}
}

// set starts p, in place of the program of the same name if there is one.
func (s *supervisor) set(p Program) error {
	if err := p.validate(); err != nil {
		return err
	}
	s.stop(p.Name)
	if err := os.MkdirAll(s.logDir, 0o755); err != nil {
		return err
	}
	log, err := os.OpenFile(filepath.Join(s.logDir, p.Name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{cancel: cancel, done: make(chan struct{}), status: Status{Program: p}}
	s.mu.Lock()
	s.programs[p.Name] = r
	s.mu.Unlock()
	go r.keepRunning(ctx, log)
	return nil
}

// stop ends the named program, if it runs, and waits until it has ended.
func (s *supervisor) stop(name string) {
	s.mu.Lock()
	r := s.programs[name]
	delete(s.programs, name)
	s.mu.Unlock()
	if r != nil {
		r.cancel()
		<-r.done
	}
}

func (s *supervisor) statuses() []Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, r := range s.programs {
		r.mu.Lock()
		all = append(all, r.status)
		r.mu.Unlock()
	}
	slices.SortFunc(all, func(a, b Status) int { return strings.Compare(a.Name, b.Name) })
	return all
}

func (r *running) keepRunning(ctx context.Context, log *os.File) {
	defer close(r.done)
	defer func() { _ = log.Close() }()
	delay := firstDelay
	for ctx.Err() == nil {
		start := time.Now()
		err := r.runOnce(ctx, log)
		if time.Since(start) > goodRun {
			delay = firstDelay
		}
		r.ended(err)
		_, _ = fmt.Fprintf(log, "-- %s ended after %s (%v)\n", r.status.Name, time.Since(start).Round(time.Millisecond), err)
		select {
		case <-ctx.Done():
		case <-time.After(delay):
			delay = min(2*delay, maxDelay)
		}
	}
}

func (r *running) runOnce(ctx context.Context, log *os.File) error {
	p := r.status.Program
	cmd := exec.CommandContext(ctx, p.Argv[0], p.Argv[1:]...)
	cmd.Env = append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root"}, p.Env...)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = cmp.Or(p.Grace, stopGrace)
	if err := cmd.Start(); err != nil {
		return err
	}
	r.mu.Lock()
	r.status.PID, r.status.Started = cmd.Process.Pid, time.Now()
	r.mu.Unlock()
	return cmd.Wait()
}

func (r *running) ended(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.PID = 0
	r.status.Restarts++
	r.status.LastExit = "exit status 0"
	if err != nil {
		r.status.LastExit = err.Error()
	}
}
