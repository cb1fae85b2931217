package dnsrecords

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

// Provider is where a record is kept.
type Provider interface {
	// Get reads the record where it is changed. A Set without values is none.
	Get(ctx context.Context, name string, typ v1alpha1.RecordType) (RecordSet, error)
	// Replace writes want in place of was, atomically, or returns an error of Conflict. A want
	// without values deletes.
	Replace(ctx context.Context, was, want RecordSet) error
	// Authoritative asks every server of the zone. An API's answer has a Server without an Addr.
	Authoritative(ctx context.Context, name string, typ v1alpha1.RecordType) ([]Answer, error)
}

// Prover is a Provider whose answers may be made from the record of a wildcard, and that can tell.
type Prover interface {
	// Exists reports whether there is a record of exactly this name, type and values.
	Exists(ctx context.Context, now RecordSet) (bool, error)
}

// Texter is a Provider that can read TXT records, by which others say what is theirs.
type Texter interface {
	// Texts returns the texts at a name in the record's zone, and maybe none outside of it.
	Texts(ctx context.Context, record, name string) ([]string, error)
}

// Guider is a Provider that leaves the change to people.
type Guider interface {
	// Guide tells them what to do.
	Guide(was, want RecordSet) string
}

// Memory keeps original records, each as a whole.
type Memory interface {
	// Recall returns nil for an unknown record, and fails in doubt: what is not remembered counts
	// as original.
	Recall(ctx context.Context, name string, typ v1alpha1.RecordType) (*v1alpha1.RecordStatus, error)
	// Remember has been kept for good when it returns.
	Remember(ctx context.Context, status v1alpha1.RecordStatus) error
	// Change is what Remember writes of a record, as a plan shows it.
	Change(name string, typ v1alpha1.RecordType) engine.Change
}
