package machine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// waitStatus waits until the only program's status is as wanted.
func waitStatus(t *testing.T, s *supervisor, wanted func(Status) bool) Status {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	var last []Status
	for {
		last = s.statuses()
		if len(last) == 1 && wanted(last[0]) {
			return last[0]
		}
		select {
		case <-deadline:
			t.Fatalf("statuses are %+v", last)
		case <-tick.C:
		}
	}
}

func TestSupervisorRestartsWhatEnds(t *testing.T) {
	dir := t.TempDir()
	s := newSupervisor(dir)
	if err := s.set(Program{Name: "short", Argv: []string{"sh", "-c", "echo hello; exit 7"}}); err != nil {
		t.Fatal(err)
	}
	defer s.stop("short")
	status := waitStatus(t, s, func(s Status) bool { return s.Restarts >= 2 })
	if status.LastExit != "exit status 7" {
		t.Errorf("last exit is %q", status.LastExit)
	}
	log, err := os.ReadFile(filepath.Join(dir, "short.log"))
	if err != nil || strings.Count(string(log), "hello\n") < 2 {
		t.Errorf("log is %q, %v", log, err)
	}
}

// TestGrace stops programs that take their time to end.
func TestGrace(t *testing.T) {
	s := newSupervisor(t.TempDir())
	for grace, want := range map[time.Duration]string{time.Minute: "in time\n", 10 * time.Millisecond: ""} {
		said := filepath.Join(t.TempDir(), "said")
		script := "trap 'sleep 0.3; echo in time >" + said + "; exit' TERM; echo; while :; do sleep 0.05; done"
		if err := s.set(Program{Name: "slow", Argv: []string{"sh", "-c", script}, Grace: grace}); err != nil {
			t.Fatal(err)
		}
		log := filepath.Join(s.logDir, "slow.log")
		waitStatus(t, s, func(Status) bool { // its first words come when the trap is set
			data, err := os.ReadFile(log)
			return err == nil && len(data) > 0
		})
		s.stop("slow")
		if err := os.Remove(log); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(said); string(got) != want {
			t.Errorf("with a grace of %s it said %q, want %q", grace, got, want)
		}
	}
}

func TestSupervisorReplacesAndStops(t *testing.T) {
	s := newSupervisor(t.TempDir())
	running := func(s Status) bool { return s.PID != 0 }
	run := func(argv ...string) int {
		if err := s.set(Program{Name: "long", Argv: argv}); err != nil {
			t.Fatal(err)
		}
		return waitStatus(t, s, running).PID
	}
	first := run("sleep", "600")
	second := run("sleep", "601")
	if err := unix.Kill(first, 0); err == nil {
		t.Errorf("process %d still runs after it was replaced", first)
	}
	s.stop("long")
	if err := unix.Kill(second, 0); err == nil {
		t.Errorf("process %d still runs after it was stopped", second)
	}
	if left := s.statuses(); len(left) != 0 {
		t.Errorf("statuses are %+v", left)
	}
	if err := s.set(Program{Name: "none"}); err == nil {
		t.Error("a program without a command line was taken")
	}
}
