package migration

import (
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Condition is the state of a Migration in one word. At most one of Reconciling and Stalled is
// true, and never with Ready: kstatus takes the first that it meets.
type Condition string

const (
	// AsDesired means that the cluster is as spec.desired says.
	AsDesired Condition = "AsDesired"
	// UnderWay goes on by itself.
	UnderWay Condition = "UnderWay"
	// AtRest does nothing, by request.
	AtRest Condition = "AtRest"
	// Stalled means that nothing goes on before a person does something.
	Stalled Condition = "Stalled"
)

// maxMessage is less than the API server takes of a condition (32768), and more than people read.
const maxMessage = 4096

// Say sets the conditions of a status, but for Paused and GateWaiting.
func (s Condition) Say(st *v1alpha1.MigrationStatus, reason, message string) {
	message = short(message)
	set(st, v1alpha1.ConditionReady, s == AsDesired, reason, message)
	switch s {
	case UnderWay:
		set(st, v1alpha1.ConditionStalled, false, v1alpha1.ReasonNotStalled, "")
		set(st, v1alpha1.ConditionReconciling, true, reason, message)
	case Stalled:
		set(st, v1alpha1.ConditionReconciling, false, v1alpha1.ReasonIdle, "")
		set(st, v1alpha1.ConditionStalled, true, reason, message)
	default:
		set(st, v1alpha1.ConditionReconciling, false, v1alpha1.ReasonIdle, "")
		set(st, v1alpha1.ConditionStalled, false, v1alpha1.ReasonNotStalled, "")
	}
}

// Await sets the condition GateWaiting; empty instructions clear it.
func Await(st *v1alpha1.MigrationStatus, reason, instructions string) {
	if instructions == "" {
		if meta.FindStatusCondition(st.Conditions, v1alpha1.ConditionGateWaiting) != nil {
			set(st, v1alpha1.ConditionGateWaiting, false, v1alpha1.ReasonNoGate, "")
		}
		return
	}
	set(st, v1alpha1.ConditionGateWaiting, true, reason, short(instructions))
}

func set(st *v1alpha1.MigrationStatus, condition string, holds bool, reason, message string) {
	c := metav1.Condition{Type: condition, Status: metav1.ConditionFalse, Reason: reason, Message: message}
	if holds {
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&st.Conditions, c)
}

func short(text string) string {
	runes := []rune(text)
	if len(runes) <= maxMessage {
		return text
	}
	return string(runes[:maxMessage-1]) + "…"
}
