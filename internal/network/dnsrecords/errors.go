package dnsrecords

import (
	"fmt"
	"time"

	"github.com/replumb/replumb/internal/engine"
)

// Error says what is the matter with a record, or with those who serve it, and what to do.
type Error struct {
	// Record as Title writes it.
	Record  string
	Problem string
	Hint    string
	// Err is the cause, if there is one. It is part of the problem already.
	Err error
}

func (e *Error) Error() string  { return e.Record + ": " + e.Problem }
func (e *Error) Advice() string { return e.Hint }
func (e *Error) Unwrap() error  { return e.Err }

// ConflictError is a change by others since the read. Nothing was written.
type ConflictError struct {
	// Was is what was there at the look, Now what is there since, if that could be seen.
	Was RecordSet
	Now *RecordSet
}

func (e *ConflictError) Error() string {
	text := fmt.Sprintf("%s: someone else has changed it: it was %s", e.Was, describe(e.Was))
	if e.Now != nil {
		text += ", and is " + describe(*e.Now)
	}
	return text
}

// Conflict is the retryable error of a record that is no longer as it was read.
func Conflict(was RecordSet, now *RecordSet) error {
	return engine.NotYet("%w", &ConflictError{Was: was, Now: now})
}

func describe(s RecordSet) string {
	if len(s.Values) == 0 {
		return "absent"
	}
	return fmt.Sprintf("%s for %s", list(s.Values), s.TTL.Round(time.Second))
}
