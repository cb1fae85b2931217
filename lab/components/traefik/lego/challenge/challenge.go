// Package challenge has what solves challenges.
package challenge

import "context"

// Provider solves one.
type Provider interface {
	Present(ctx context.Context, domain, token, keyAuth string) error
	CleanUp(ctx context.Context, domain, token, keyAuth string) error
}
