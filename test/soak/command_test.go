package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/replumb/replumb/internal/engine"
)

// asReplumb, in the environment, makes this test binary play replumb, as the variable says.
const asReplumb = "SOAK_AS_REPLUMB"

func TestMain(m *testing.M) {
	if script := os.Getenv(asReplumb); script != "" {
		os.Exit(play(script))
	}
	os.Exit(m.Run())
}

// play emits events, and ends with the code that stands first in the script, which is a file with a code a line. Each run takes one
// away.
func play(script string) int {
	data := must(os.ReadFile(script))
	code, rest, _ := strings.Cut(string(data), "\n")
	must(0, os.WriteFile(script, []byte(rest), 0o600))
	for i := range 4000 { // more than a pipe holds
		e := engine.Event{Kind: engine.StepDone, Phase: "move", Step: fmt.Sprintf("hop/%d", i)}
		if i%1000 == 0 {
			e = engine.Event{Kind: engine.StepWaiting, Step: "gate/kubelets", Guide: "do it"}
		}
		fmt.Println(string(must(json.Marshal(e))))
	}
	fmt.Fprintln(os.Stderr, "error: that is it")
	return must(strconv.Atoi(code))
}

// script is a command whose runs end with these codes.
func script(t *testing.T, seed uint64, codes ...int) *command {
	t.Helper()
	file := filepath.Join(t.TempDir(), "codes")
	var text strings.Builder
	for _, c := range codes {
		fmt.Fprintln(&text, c)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv(asReplumb, file)
	return &command{
		program: os.Args[0], args: []string{"apply"}, random: rand.New(rand.NewPCG(seed, 0)), say: t.Logf, heard: func(engine.Event) {},
		act: func(context.Context, string) error { return nil },
	}
}

func TestCommandIsRunUntilItIsDone(t *testing.T) {
	for name, test := range map[string]struct {
		codes []int
		say   string // the error
	}{
		"at once":                        {[]int{0, 0, 0, 0}, ""},
		"interrupted":                    {[]int{130, 0, 0, 0, 0}, ""},
		"a step took too long":           {[]int{1, 1, 0, 0, 0, 0}, ""},
		"never":                          {[]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, "ended 7 times in a row"},
		"a machine that is busy":         {[]int{6, 6, 0, 0, 0, 0}, ""},
		"blocked for a while":            {[]int{3, 3, 0, 0, 0, 0}, ""},
		"blocked":                        {[]int{3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3}, "exit code 3"},
		"a wrong command line":           {[]int{2, 2, 2, 2}, "exit code 2"},
		"requests were lost":             {[]int{4, 4, 4, 4}, "exit code 4"},
		"another replumb, or so it says": {[]int{5, 5, 5, 5}, "exit code 5"},
	} {
		t.Run(name, func(t *testing.T) {
			c := script(t, 1, test.codes...)
			err := c.run(t.Context())
			if (err == nil) != (test.say == "") || (err != nil && !strings.Contains(err.Error(), test.say)) {
				t.Errorf("it ends with %v, want %q", err, test.say)
			}
			if err != nil && !strings.Contains(err.Error(), "that is it") {
				t.Errorf("it does not say what replumb said: %v", err)
			}
		})
	}
}

func TestCommandIsKilled(t *testing.T) {
	kills := map[int]bool{}
	for seed := range uint64(12) {
		c := script(t, seed, slices.Repeat([]int{0}, maxKills+1)...)
		if err := c.run(t.Context()); err != nil {
			t.Fatal(err)
		}
		kills[c.kills] = true
	}
	for n := range maxKills + 1 {
		if !kills[n] {
			t.Errorf("no command was killed %d times: %v", n, kills)
		}
	}
}

func TestGatesAreAttendedOnceARun(t *testing.T) {
	var mu sync.Mutex
	var acts []string
	c := script(t, 0, 130, 0)
	c.random = rand.New(zero{}) // which kills none
	c.act = func(_ context.Context, gate string) error {
		mu.Lock()
		defer mu.Unlock()
		acts = append(acts, gate)
		return nil
	}
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(acts, []string{"gate/kubelets", "gate/kubelets"}) || c.kills > 0 || c.stumbles != 1 {
		t.Errorf("in two runs it acted at %v; %d kills, %d stumbles", acts, c.kills, c.stumbles)
	}
	c = script(t, 0, 0, 0)
	c.random = rand.New(zero{})
	c.act = func(context.Context, string) error { return errors.New("no kubelet") }
	if err := c.run(t.Context()); err == nil || !strings.Contains(err.Error(), "at gate/kubelets: no kubelet") {
		t.Errorf("the operator failed, and the run ends with %v", err)
	}
}

// zero is what is drawn.
type zero struct{}

func (zero) Uint64() uint64 { return 0 }
