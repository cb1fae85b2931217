package migration

import (
	"fmt"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// Approvals are what people have approved of a Migration, by its annotation.
type Approvals struct {
	Plans  []string
	Finish bool
	// Gates are answers, as NAME=ANSWER, to gates whose state nothing but a person can see.
	Gates []string
	// Losses are tokens of losses after which a run may go on.
	Losses []string
}

// ApprovalError says that the annotation has something that approves nothing.
type ApprovalError struct {
	Name, Word string
}

func (e *ApprovalError) Error() string {
	return fmt.Sprintf("migration %s: annotation %s has %q, which approves nothing", e.Name, v1alpha1.AnnotationApprove, e.Word)
}

func (*ApprovalError) Advice() string {
	return "use plan:HASH, finish, gate:NAME=ANSWER or losses:TOKEN, with spaces or commas between them"
}

func (*ApprovalError) ExitCode() int { return fault.ExitUsage }

// Approved reads approvals. It fails with an *ApprovalError on unknown words: a person may rely on
// them.
func Approved(m *v1alpha1.Migration) (Approvals, error) {
	var a Approvals
	for _, word := range strings.FieldsFunc(m.Annotations[v1alpha1.AnnotationApprove], separates) {
		what, of, _ := strings.Cut(word, ":")
		name, answer, _ := strings.Cut(of, "=")
		switch {
		case word == "finish":
			a.Finish = true
		case what == "plan" && of != "":
			a.Plans = append(a.Plans, of)
		case what == "gate" && name != "" && answer != "":
			a.Gates = append(a.Gates, of)
		case what == "losses" && of != "":
			a.Losses = append(a.Losses, of)
		default:
			return Approvals{}, &ApprovalError{Name: m.Name, Word: word}
		}
	}
	return a, nil
}

func separates(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' }

// Approve adds missing words. A new plan replaces the approved one.
func Approve(m *v1alpha1.Migration, words ...string) {
	have := strings.FieldsFunc(m.Annotations[v1alpha1.AnnotationApprove], separates)
	for _, word := range words {
		if strings.HasPrefix(word, "plan:") {
			have = slices.DeleteFunc(have, func(w string) bool { return w != word && strings.HasPrefix(w, "plan:") })
		}
		if word != "" && !slices.Contains(have, word) {
			have = append(have, word)
		}
	}
	if len(have) == 0 {
		return
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[v1alpha1.AnnotationApprove] = strings.Join(have, ",")
}

// Answered reports whether a person has answered a gate: by its annotation, such as
// replumb.dev/api-servers: Repointed, or by approving gate:api-servers=Repointed. m may be nil.
func Answered(m *v1alpha1.Migration, annotation, answer string) bool {
	if m == nil || answer == "" {
		return false
	}
	if m.Annotations[annotation] == answer {
		return true
	}
	a, err := Approved(m)
	return err == nil && slices.Contains(a.Gates, strings.TrimPrefix(annotation, prefix)+"="+answer)
}

const prefix = "replumb.dev/"
