package dnsrecords

import (
	"context"

	"github.com/replumb/replumb/api/v1alpha1"
)

// Closed is a provider that could not be opened, for want of its key for instance.
type Closed struct{ Err error }

var _ Provider = (*Closed)(nil)

func (c *Closed) Get(context.Context, string, v1alpha1.RecordType) (RecordSet, error) {
	return RecordSet{}, c.Err
}

func (c *Closed) Replace(context.Context, RecordSet, RecordSet) error { return c.Err }

func (c *Closed) Authoritative(context.Context, string, v1alpha1.RecordType) ([]Answer, error) {
	return nil, c.Err
}
