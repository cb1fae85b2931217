//go:build unix

package fleet

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// script is a program in place of replumb. The shell reads it, so that no file is run that another
// test may hold open.
func script(t *testing.T, text string) (*Program, *ClusterTarget) {
	t.Helper()
	dir := t.TempDir()
	m := &v1alpha1.Migration{}
	m.Name = "move"
	p := &Program{Path: "/bin/sh", Name: "sh", OnLine: func(*ClusterTarget, OutputLine) {}}
	t.Setenv("ENV", "")
	// sh takes the first argument for a file: a file by the name of the command is the script.
	for _, command := range []string{"apply", "status", "check"} {
		if err := os.WriteFile(filepath.Join(dir, command), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return p, &ClusterTarget{Cluster: Cluster{Name: "a", Context: "ctx"}, Dir: dir, Manifest: []byte("the Migration"), Migration: m}
}

func TestProgramIsGivenTheMigration(t *testing.T) {
	p, target := script(t, `echo "$*"; cat; echo; pwd; echo "$KUBECONFIG"; echo "said" >&2`)
	t.Setenv("KUBECONFIG", "one"+string(filepath.ListSeparator)+"/two")
	p.Flags, p.Kubeconfig = []string{"--as=me"}, "/default"
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var events, said []string
	p.OnLine = func(_ *ClusterTarget, l OutputLine) {
		mu.Lock()
		defer mu.Unlock()
		if l.Event {
			events = append(events, l.Text)
		} else {
			said = append(said, l.Text)
		}
	}
	if of := p.Do(t.Context(), target, Apply); of != (Outcome{}) {
		t.Fatal(of)
	}
	dir, err := filepath.EvalSymlinks(target.Dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"-f - -o json --context ctx --kubeconfig /default --as=me", "the Migration", dir, filepath.Join(here, "one") + ":/two"}
	if !slices.Equal(events, want) || !slices.Equal(said, []string{"said"}) {
		t.Errorf("%q, %q", events, said)
	}
	target.Kubeconfig = "/own"
	printed, of := p.Ask(t.Context(), target, "check")
	if of.Code != 0 || !strings.HasPrefix(string(printed), "--context ctx --kubeconfig /own") {
		t.Errorf("%s, %+v", printed, of)
	}
}

func TestProgramEnds(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want Outcome
	}{
		"well":              {"true", Outcome{}},
		"of a loss":         {"printf 'warning: x\nerror: lost 3\n  requests\nhint: look\n  there\n' >&2; exit 4", Outcome{4, "lost 3 requests"}},
		"without a word":    {"exit 3", Outcome{3, ""}},
		"killed":            {"kill -9 $$", Outcome{fault.ExitError, "signal: killed"}},
		"no end of line":    {"printf 'error: half' >&2; exit 1", Outcome{1, "half"}},
		"another after one": {"printf 'error: a\nerror: b\n' >&2; exit 1", Outcome{1, "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, target := script(t, tt.text)
			if got := p.Do(t.Context(), target, Apply); got != tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

// TestProgramIsInterruptedOnce: it gets one SIGINT, and is waited for however long it takes.
func TestProgramIsInterruptedOnce(t *testing.T) {
	p, target := script(t, `
		trap 'n=$((n+1)); echo "INT $n"' INT
		echo up
		while [ -z "$n" ]; do sleep 0.05; done
		sleep 0.3; echo "error: interrupted" >&2; exit 130`)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []string
	p.OnLine = func(_ *ClusterTarget, l OutputLine) {
		if !l.Event {
			return
		}
		if got = append(got, l.Text); l.Text == "up" {
			cancel()
		}
	}
	if of := p.Do(ctx, target, Apply); of != (Outcome{fault.ExitInterrupted, "interrupted"}) {
		t.Errorf("%+v", of)
	}
	if !slices.Equal(got, []string{"up", "INT 1"}) {
		t.Errorf("%q", got)
	}
	if of := p.Do(ctx, target, Apply); of.Code != fault.ExitInterrupted || len(got) != 2 {
		t.Errorf("one that is interrupted before it begins: %+v, %q", of, got)
	}
}

func TestProgramLooks(t *testing.T) {
	p, target := script(t, `printf '{"phase":"Moved","counts":{"total":4,"moved":4}}'`)
	if s := p.Status(t.Context(), target); s.Phase != v1alpha1.PhaseMoved || s.Moved != 4 || s.Error != "" {
		t.Errorf("%+v", s)
	}
	for text, want := range map[string]string{
		"echo 'error: cannot be reached' >&2; exit 1": "cannot be reached", "echo '['": "reading the status",
	} {
		p, target := script(t, text)
		if s := p.Status(t.Context(), target); s.ExitCode != 1 || !strings.Contains(s.Error, want) || s.Cluster != "a" {
			t.Errorf("%+v", s)
		}
	}
}
