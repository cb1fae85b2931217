package cli

import (
	"regexp"
	"strings"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

// standalone is what replumb is called by itself, plugin as a plugin of kubectl.
const (
	standalone = "replumb"
	plugin     = "kubectl replumb"
)

// calledAs is what the user calls a program of this name.
func calledAs(argv0 string) string {
	if strings.HasPrefix(argv0, "kubectl-") {
		return plugin
	}
	return standalone
}

// spokenCommands finds commands of replumb in a text, whatever they are called there.
func spokenCommands() *regexp.Regexp {
	const commands = "apply|backup|canary|check|explain|finish|fleet|install|overlap|pause|plan|probe|ranges|rbac|report|resume|rollback|status|" +
		"tunnels|ui|unfreeze|version"
	return regexp.MustCompile("(^|[\\s(\"'`])(?:kubectl )?replumb (" + commands + `)\b`)
}

// spoken is a text with the commands in it as the user has to type them. What is deeper down does not know what it is called.
func spoken(command, text string) string {
	if command == standalone || !strings.Contains(text, standalone+" ") {
		return text
	}
	return spokenCommands().ReplaceAllString(text, "${1}"+command+" ${2}")
}

// spokenEvent is an event for people.
func spokenEvent(command string, e engine.Event) engine.Event {
	e.Error, e.Note, e.Guide = spoken(command, e.Error), spoken(command, e.Note), spoken(command, e.Guide)
	return e
}

// spokenFindings are findings for people.
func spokenFindings(command string, all findings.Findings) findings.Findings {
	out := append(findings.Findings{}, all...)
	for i := range out {
		out[i].Message, out[i].Fix = spoken(command, out[i].Message), spoken(command, out[i].Fix)
	}
	return out
}
