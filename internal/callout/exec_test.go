//go:build unix

package callout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

type question struct {
	Name string `json:"name"`
}

type reply struct {
	Hello string `json:"hello"`
}

// program writes a shell script and returns the action that runs it. The shell reads it, rather
// than the kernel runs it: that fails with "text file busy" when another test forks while the file
// is still open for writing.
func program(t *testing.T, limit time.Duration, script string, args ...string) v1alpha1.Action {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	return v1alpha1.Action{
		Exec:    &v1alpha1.ExecAction{Command: append([]string{"/bin/sh", path}, args...)},
		Timeout: &metav1.Duration{Duration: limit},
	}
}

func TestExecAnswers(t *testing.T) {
	t.Setenv("CALLOUT_GREETING", "good day")
	got := reply{}
	t.Setenv("CALLOUT_SECRET", "s3cr3t")
	t.Setenv("LC_PAPER", "de_DE")
	action := program(t, 10*time.Second, `
		test -z "$CALLOUT_SECRET" && test -n "$PATH" && test "$LC_PAPER" = de_DE || exit 1
		name=$(sed 's/.*:"\(.*\)".*/\1/')
		echo "for the log" >&2
		printf '{"hello":"%s, %s %s"}\n\n' "$CALLOUT_GREETING" "$name" "$1"`, "$(id); a  b")
	action.Exec.Env = []string{"CALLOUT_GREETING"}
	if err := Call(t.Context(), action, question{"cart"}, &got); err != nil {
		t.Fatal(err)
	}
	if want := "good day, cart $(id); a  b"; got.Hello != want {
		t.Errorf("got %q, want %q", got.Hello, want)
	}
}

func TestExecFails(t *testing.T) {
	for _, tt := range []struct {
		name, script, want string
	}{
		{"exit status", "echo no such tier >&2; exit 3", "exit status 3; its output is on the terminal of "},
		{"exit status after an answer", `echo '{"hello":"x"}'; exit 1`, "exit status 1"},
		{"garbage", "echo hello", "not the JSON that was expected"},
		{"another type", `echo '{"hello":{}}'`, "not the JSON that was expected"},
		{"goes on", `echo '{"hello":"x"}'; echo '{"hello":"y"}'`, "goes on after the JSON"},
		{"goes on with garbage", `echo '{"hello":"x"} oops'`, "goes on after the JSON"},
		{"nothing", "cat >/dev/null", "did not answer"},
		{"too much", "yes", "longer than 16 MiB"},
		{"killed", "kill -9 $$", "signal: killed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			action := program(t, 20*time.Second, tt.script, "--token=secret")
			err := Call(t.Context(), action, question{"cart"}, &reply{})
			var call *Error
			if !errors.As(err, &call) || call.TimedOut || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
			if said := fault.Private(err); strings.Contains(tt.script, ">&2") != (said == "no such tier") {
				t.Errorf("said %q", said)
			}
			if !strings.HasPrefix(err.Error(), "calling "+action.Exec.Command[0]+": ") || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestExecWithoutAnAnswer(t *testing.T) {
	big := strings.Repeat("x", 1<<20) // more than a pipe holds, and the program does not read it
	if err := Call(t.Context(), program(t, 10*time.Second, "echo whatever"), question{big}, nil); err != nil {
		t.Error(err)
	}
	var call *Error
	if err := Call(t.Context(), program(t, 10*time.Second, "exit 3"), question{}, nil); !errors.As(err, &call) {
		t.Errorf("got %v", err)
	}
}

func TestExecQuotesOnlyTheEndOfWhatWasSaid(t *testing.T) {
	err := Call(t.Context(), program(t, 10*time.Second, `
		i=0; while [ $i -lt 500 ]; do echo "line $i" >&2; i=$((i+1)); done
		printf '\033[31mlast \303\244\n' >&2; exit 1`), question{}, nil)
	said := fault.Private(err)
	if !strings.HasSuffix(said, "line 499 [31mlast ä") || strings.Contains(said, "line 400 ") {
		t.Errorf("got %v", said)
	}
	if len([]rune(said)) != maxTail {
		t.Errorf("%d characters", len([]rune(said)))
	}
}

func TestOutputIsPublishedOnRequest(t *testing.T) {
	action := program(t, 10*time.Second, "echo password >&2; exit 1")
	err := Call(t.Context(), action, question{}, nil)
	if err == nil || strings.Contains(err.Error(), "password") || fault.Private(err) != "password" {
		t.Errorf("got %v", err)
	}
	action.Exec.PublishOutput = true
	err = Call(t.Context(), action, question{}, nil)
	if err == nil || !strings.HasSuffix(err.Error(), "exit status 1: password") || fault.Private(err) != "" {
		t.Errorf("got %v", err)
	}
}

// stubborn has a child that ignores SIGTERM and keeps the output open.
const stubborn = `
	(trap '' TERM; sh -c 'echo $PPID' > "$1.tmp"; mv "$1.tmp" "$1"; sleep 60) &
	wait`

// await waits until the file is there and returns the process number in it.
func await(t *testing.T, file string) int {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for {
		select {
		case <-limit:
			t.Errorf("%s is not there", file)
			return 0
		case <-tick.C:
			if text, err := os.ReadFile(file); err == nil {
				return number(t, text)
			}
		}
	}
}

func number(t *testing.T, text []byte) int {
	t.Helper()
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Error(err)
	}
	return pid
}

// gone waits until a process has ended.
func gone(t *testing.T, pid int) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(20 * time.Second)
	for {
		select {
		case <-limit:
			t.Fatalf("process %d is still there", pid)
		case <-tick.C:
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
			if syscall.Kill(pid, 0) != nil || err == nil && strings.Contains(string(stat), ") Z ") {
				return
			}
		}
	}
}

func TestExecThatHangsIsEndedWithItsChildren(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	// On a busy machine the program may be ended before it has come to the point.
	for _, limit := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 15 * time.Second} {
		start := time.Now()
		err := Call(t.Context(), program(t, limit, "echo not yet >&2\n"+stubborn, file), question{}, &reply{})
		var call *Error
		if !errors.As(err, &call) || !call.TimedOut || !strings.Contains(err.Error(), "no answer within "+limit.String()) {
			t.Errorf("got %v", err)
		}
		if took := time.Since(start); took > limit+20*time.Second {
			t.Errorf("took %s", took)
		}
		text, readErr := os.ReadFile(file)
		if readErr != nil {
			continue
		}
		if fault.Private(err) != "not yet" {
			t.Errorf("its last words are missing: %v", err)
		}
		gone(t, number(t, text))
		return
	}
	t.Error("the program never came to the point")
}

func TestExecEndsWhenCancelled(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("enough")
	go func() {
		await(t, file)
		cancel(why)
	}()
	err := Call(ctx, program(t, time.Hour, stubborn, file), question{}, &reply{})
	var call *Error
	if !errors.As(err, &call) || call.TimedOut || !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if pid := await(t, file); pid > 0 {
		gone(t, pid)
	}
}

func TestExecThatLeavesAProcessBehindFails(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "pid")
	err := Call(
		t.Context(),
		program(t, time.Minute, strings.Replace(stubborn, "wait", `echo '{"hello":"x"}'`, 1), file),
		question{},
		&reply{},
	)
	if err == nil || !strings.Contains(err.Error(), "left a process behind") {
		t.Errorf("got %v", err)
	}
	if pid := await(t, file); pid > 0 {
		gone(t, pid)
	}
}

func TestCheckExec(t *testing.T) {
	if err := Check(program(t, time.Minute, "exit 3")); err != nil {
		t.Error(err)
	}
	for _, command := range [][]string{nil, {"/does/not/exist"}, {"no-such-program-anywhere"}, {"./exec_test.go"}} {
		action := v1alpha1.Action{Exec: &v1alpha1.ExecAction{Command: command}}
		var call *Error
		if err := Check(action); !errors.As(err, &call) {
			t.Errorf("%v: Check: got %v", command, err)
		}
		if err := Call(t.Context(), action, question{}, nil); !errors.As(err, &call) {
			t.Errorf("%v: Call: got %v", command, err)
		}
	}
}
