package fault

import (
	"errors"
	"fmt"
	"testing"
)

type coded struct{ Hinted }

func (*coded) ExitCode() int { return ExitLocked }

func TestFault(t *testing.T) {
	plain := errors.New("plain")
	locked := &coded{Hinted{Err: plain, Hint: "wait"}}
	for name, tt := range map[string]struct {
		err    error
		code   int
		ok     bool
		advice string
	}{
		"nothing":                   {nil, ExitError, false, ""},
		"a plain error":             {plain, ExitError, false, ""},
		"wrapped":                   {fmt.Errorf("locking: %w", locked), ExitLocked, true, "wait"},
		"joined":                    {errors.Join(plain, locked), ExitLocked, true, "wait"},
		"the outermost advice wins": {&Hinted{Err: locked, Hint: "look"}, ExitLocked, true, "look"},
		"unless there is none":      {&Hinted{Err: locked}, ExitLocked, true, "wait"},
		"advice without a code":     {&Hinted{Err: plain, Hint: "look"}, ExitError, false, "look"},
	} {
		t.Run(name, func(t *testing.T) {
			code, ok := ExitCode(tt.err)
			if advice := Advice(tt.err); code != tt.code || ok != tt.ok || advice != tt.advice {
				t.Errorf("code %d (%v), advice %q; want %d (%v), %q", code, ok, advice, tt.code, tt.ok, tt.advice)
			}
		})
	}
}
