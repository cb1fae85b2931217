package command

import (
	"regexp"
	"strings"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/findings"
)

// Names that users call replumb by: as a program, and as a plugin of kubectl.
const (
	Standalone = "replumb"
	Plugin     = "kubectl replumb"
)

// CalledAs is what the user calls a program of this name.
func CalledAs(argv0 string) string {
	if strings.HasPrefix(argv0, "kubectl-") {
		return Plugin
	}
	return Standalone
}

func spokenCommands() *regexp.Regexp {
	const commands = "apply|backup|canary|check|explain|finish|fleet|install|mirror-config|operator|overlap|pause|plan|probe|ranges|rbac|report|" +
		"resume|rollback|snapshot|status|tunnels|ui|unfreeze|uninstall|version"
	return regexp.MustCompile("(^|[\\s(\"'`])(?:kubectl )?replumb (" + commands + `)\b`)
}

// Spoken is a text with its commands as the user types them. Lower rooms write "replumb".
func Spoken(command, text string) string {
	if command == Standalone || !strings.Contains(text, Standalone+" ") {
		return text
	}
	return spokenCommands().ReplaceAllString(text, "${1}"+command+" ${2}")
}

// SpokenEvent is an event for people.
func SpokenEvent(command string, e engine.Event) engine.Event {
	e.Error, e.Note, e.Guide = Spoken(command, e.Error), Spoken(command, e.Note), Spoken(command, e.Guide)
	return e
}

// SpokenFindings are findings for people.
func SpokenFindings(command string, all findings.Findings) findings.Findings {
	out := append(findings.Findings{}, all...)
	for i := range out {
		out[i].Message, out[i].Fix = Spoken(command, out[i].Message), Spoken(command, out[i].Fix)
	}
	return out
}
