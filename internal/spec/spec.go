// Package spec defaults and validates those parts of a Migration that all kinds of migration share.
package spec

import (
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/callout"

	"github.com/replumb/replumb/internal/engine/fault"
)

const (
	// DefaultBatch is how many objects move together.
	DefaultBatch = 10
	// DefaultSettle is how long a run waits after a batch.
	DefaultSettle = 2 * time.Second
	// DefaultNotifyTimeout is how long a notification may take.
	DefaultNotifyTimeout = 10 * time.Second

	maxBatch   = 500
	maxTimeout = 10 * time.Minute
)

// Error says which field of a Migration is wrong, and what to do.
type Error struct {
	// Field is its path, such as spec.tiers[1].selector.
	Field   string
	Problem string
	Hint    string
}

func (e *Error) Error() string { return e.Field + ": " + e.Problem }

// Advice implements fault.Adviser.
func (e *Error) Advice() string { return e.Hint }

// ExitCode implements fault.Coder.
func (*Error) ExitCode() int { return fault.ExitUsage }

// Differs says that a field is not what the Migration of that name, which has begun, has there.
func Differs(field, name string) *Error {
	return &Error{
		Field: field, Problem: fmt.Sprintf("differs from migration %s in the cluster", name),
		Hint: "a migration that has begun cannot be changed: use its spec, or roll it back and give the new one another name",
	}
}

// Default fills in what a Migration leaves open.
func Default(m *v1alpha1.MigrationSpec) {
	orElse(&m.Batch.Size, DefaultBatch)
	orDuration(&m.Batch.Settle, DefaultSettle)
	if m.TierLookup != nil {
		orDuration(&m.TierLookup.Timeout, callout.DefaultTimeout)
	}
	for i := range m.Windows {
		orElse(&m.Windows[i].TimeZone, "UTC")
	}
	for i := range m.Hooks {
		orDuration(&m.Hooks[i].Timeout, callout.DefaultTimeout)
		orElse(&m.Hooks[i].OnFailure, v1alpha1.FailureStop)
	}
	for i := range m.Notify {
		orDuration(&m.Notify[i].Timeout, DefaultNotifyTimeout)
		orElse(&m.Notify[i].Format, v1alpha1.NotifyJSON)
		orElse(&m.Notify[i].OnFailure, v1alpha1.FailureContinue)
	}
	orElse(&m.Freeze, v1alpha1.FreezeEnforce)
	orElse(&m.Backups, v1alpha1.BackupsRemove)
	orElse(&m.Desired, v1alpha1.DesiredPlanned)
}

func orElse[T comparable](field *T, otherwise T) {
	var unset T
	if *field == unset {
		*field = otherwise
	}
}

func orDuration(d **metav1.Duration, otherwise time.Duration) {
	if *d == nil {
		*d = &metav1.Duration{Duration: otherwise}
	}
}

// Validate says what is wrong with a defaulted spec, by an *Error of the first field that is. phases are the names of the
// phases that the plans of the migration have.
func Validate(m *v1alpha1.MigrationSpec, phases []string) error {
	for _, check := range []func() error{
		func() error { return validateBatch(m.Batch) },
		func() error { return validateTiers(m) },
		func() error { return validateLookup(m.TierLookup) },
		func() error { return validateWindows(m.Windows) },
		func() error { return validateHooks(m, phases) },
		func() error { return validateNotify(m.Notify) },
		func() error { return validateProof(&m.Proof) },
		func() error {
			return oneOf("spec.freeze", m.Freeze, v1alpha1.FreezeEnforce, v1alpha1.FreezeIfPossible, v1alpha1.FreezeDisabled)
		},
		func() error { return oneOf("spec.backups", m.Backups, v1alpha1.BackupsRemove, v1alpha1.BackupsKeep) },
		func() error {
			return oneOf("spec.desired", m.Desired,
				v1alpha1.DesiredPlanned, v1alpha1.DesiredApplied, v1alpha1.DesiredRolledBack, v1alpha1.DesiredFinished)
		},
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

func validateBatch(b v1alpha1.BatchSpec) error {
	if b.Size < 1 || b.Size > maxBatch {
		return &Error{
			Field: "spec.batch.size", Problem: fmt.Sprintf("%d is not within 1 and %d", b.Size, maxBatch),
			Hint: fmt.Sprintf("%d is a good size", DefaultBatch),
		}
	}
	return notNegative("spec.batch.settle", b.Settle)
}

func notNegative(field string, d *metav1.Duration) error {
	if d != nil && d.Duration < 0 {
		return &Error{Field: field, Problem: "is negative", Hint: "write a duration such as 60s"}
	}
	return nil
}

func oneOf[T ~string](field string, value T, allowed ...T) error {
	if slices.Contains(allowed, value) {
		return nil
	}
	return &Error{Field: field, Problem: fmt.Sprintf("%q is not known", value), Hint: fmt.Sprintf("use one of %v", allowed)}
}
