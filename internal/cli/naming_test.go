package cli

import (
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/replumb/replumb/internal/cli/command"
	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
	"github.com/replumb/replumb/internal/migrations"
)

// bare finds commands that a user of the plugin could not type.
func bare() *regexp.Regexp {
	return regexp.MustCompile(
		"(^|[^l] |[(\"'`])replumb (apply|backup|check|explain|finish|fleet|pause|plan|ranges|rbac|report|resume|rollback|status|unfreeze)\\b",
	)
}

// TestSpoken: commands in what people read are those that they have to type, and nothing else is
// changed.
func TestSpoken(t *testing.T) {
	for text, want := range map[string]string{
		"":                                  "",
		"replumb finish move":               "kubectl replumb finish move",
		"kubectl replumb finish move":       "kubectl replumb finish move",
		"run `replumb apply -f FILE`":       "run `kubectl replumb apply -f FILE`",
		"bin/replumb apply":                 "bin/replumb apply",
		"replumb goes on by itself":         "replumb goes on by itself",
		"see (replumb status), replumb.":    "see (kubectl replumb status), replumb.",
		"one\nreplumb pause a, or rollback": "one\nkubectl replumb pause a, or rollback",
	} {
		if got := command.Spoken(command.Plugin, text); got != want {
			t.Errorf("%q is spoken %q, want %q", text, got, want)
		}
		if got := command.Spoken(command.Standalone, text); got != text {
			t.Errorf("%q is spoken %q, want it as it is", text, got)
		}
	}
	e := command.SpokenEvent(command.Plugin, engine.Event{Guide: "replumb status", Error: "replumb check", Note: "replumb apply", Message: "m"})
	if bare().MatchString(e.Guide + "\n" + e.Error + "\n" + e.Note) {
		t.Errorf("an event says %+v", e)
	}
}

// TestEveryCommandIsSpoken: none that users type is missing among those that texts are spelled
// with.
func TestEveryCommandIsSpoken(t *testing.T) {
	for _, cmd := range NewCommand("replumb", nil, io.Discard, io.Discard).Commands() {
		if got := command.Spoken(command.Plugin, "replumb "+cmd.Name()); !cmd.Hidden && cmd.Name() != "help" && !strings.HasPrefix(got, command.Plugin) {
			t.Errorf("as a plugin a text says %q", got)
		}
	}
}

// TestEveryHintNamesThePlugin holds all errors that have an exit code or a hint, and the fixes of
// all checks.
func TestEveryHintNamesThePlugin(t *testing.T) {
	for name, tt := range exits() {
		var b strings.Builder
		command.Report(&b, command.Plugin, tt.err)
		if found := bare().FindString(b.String()); found != "" {
			t.Errorf("%s: %q is no command of the plugin, in %q", name, found, &b)
		}
	}
	for _, kind := range migrations.All() {
		var all findings.Findings
		for _, c := range kind.Checks {
			all = append(all, findings.Finding{Code: c.Code, Fix: c.Fix, Message: c.Why})
		}
		for _, f := range command.SpokenFindings(command.Plugin, all) {
			if found := bare().FindString(f.Fix + "\n" + f.Message); found != "" {
				t.Errorf("%s: %q is no command of the plugin", f.Code, found)
			}
		}
	}
}

// TestWhatToDoNeedsNoSources: users that advice is given to have the program, and need not have its
// sources.
func TestWhatToDoNeedsNoSources(t *testing.T) {
	texts := map[string]string{}
	for _, kind := range append(migrations.All(), migrations.Shared()) {
		for _, c := range kind.Checks {
			texts[c.Code] = c.Fix
		}
	}
	for name, e := range exits() {
		texts[name] = command.HintOf(e.err)
	}
	for name, text := range texts {
		if strings.Contains(text, "deploy/") {
			t.Errorf("%s: %s", name, text)
		}
	}
}
