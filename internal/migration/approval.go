package migration

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine/fault"
)

// Approvals are what people have approved of a Migration, by its annotation.
type Approvals struct {
	Plans []string
	// Finish says that this attempt may be finished, and not an earlier one.
	Finish bool
	// Gates are answers, as NAME=ANSWER, to gates whose state nothing but a person can see.
	Gates []string
	// Repaired are the words, such as losses:TOKEN, for what has stopped a run and was looked at.
	Repaired []string
}

// ApprovalError says that the annotation has something that approves nothing.
type ApprovalError struct {
	Name, Word string
}

func (e *ApprovalError) Error() string {
	return fmt.Sprintf("migration %s: annotation %s has %q, which approves nothing", e.Name, v1alpha1.AnnotationApprove, e.Word)
}

func (*ApprovalError) Advice() string {
	return "use plan:HASH, finish:TOKEN, gate:NAME=ANSWER, losses:TOKEN or returned:TOKEN, with spaces or commas between them; " +
		"the conditions of the Migration name the token when its time has come"
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
		case what == "finish" && of != "":
			a.Finish = a.Finish || word == FinishWord(m)
		case what == "plan" && of != "":
			a.Plans = append(a.Plans, of)
		case what == "gate" && name != "" && answer != "":
			a.Gates = append(a.Gates, of)
		case (what == "losses" || what == "returned") && of != "":
			a.Repaired = append(a.Repaired, word)
		default:
			return Approvals{}, &ApprovalError{Name: m.Name, Word: word}
		}
	}
	return a, nil
}

// FinishWord is what a person approves to have this attempt finished. Another attempt, or another
// Migration of this name, has another word.
func FinishWord(m *v1alpha1.Migration) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", m.UID, m.Status.Attempt))
	return "finish:" + hex.EncodeToString(sum[:])[:12]
}

func separates(r rune) bool { return r == ',' || r == ' ' || r == '\t' || r == '\n' }

// Approve adds missing words. A new plan replaces the approved one, and so does the word of finish.
func Approve(m *v1alpha1.Migration, words ...string) {
	have := strings.FieldsFunc(m.Annotations[v1alpha1.AnnotationApprove], separates)
	for _, word := range words {
		what, _, _ := strings.Cut(word, ":")
		if what == "plan" || what == "finish" {
			have = slices.DeleteFunc(have, func(w string) bool { return w != word && is(w, what) })
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

func is(word, what string) bool { return word == what || strings.HasPrefix(word, what+":") }

// Withdraw takes away the approval of finish, which is used up or is of an attempt that was taken
// back.
func Withdraw(m *v1alpha1.Migration) (withdrawn bool) {
	have := strings.FieldsFunc(m.Annotations[v1alpha1.AnnotationApprove], separates)
	left := slices.DeleteFunc(slices.Clone(have), func(w string) bool { return is(w, "finish") })
	switch {
	case len(left) == len(have):
		return false
	case len(left) == 0:
		delete(m.Annotations, v1alpha1.AnnotationApprove)
	default:
		m.Annotations[v1alpha1.AnnotationApprove] = strings.Join(left, ",")
	}
	return true
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
