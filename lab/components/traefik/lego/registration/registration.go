// Package registration registers none.
package registration

import (
	"context"

	none "github.com/go-acme/lego/v5"
	"github.com/go-acme/lego/v5/acme"
)

// RegisterOptions is what an account agrees to.
type RegisterOptions struct{ TermsOfServiceAgreed bool }

// RegisterEABOptions is the same of an account that another one vouches for.
type RegisterEABOptions struct {
	TermsOfServiceAgreed bool
	Kid, HmacEncoded     string
}

// Registrar registers none.
type Registrar struct{}

// Register fails.
func (*Registrar) Register(context.Context, RegisterOptions) (*acme.ExtendedAccount, error) {
	return nil, none.ErrACME
}

// RegisterWithExternalAccountBinding fails.
func (*Registrar) RegisterWithExternalAccountBinding(context.Context, RegisterEABOptions) (*acme.ExtendedAccount, error) {
	return nil, none.ErrACME
}
