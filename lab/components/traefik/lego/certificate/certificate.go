// Package certificate obtains none.
package certificate

import (
	"context"

	none "github.com/go-acme/lego/v5"
	"github.com/go-acme/lego/v5/certcrypto"
)

// Resource is a certificate.
type Resource struct {
	ID                      string
	Domains                 []string
	PrivateKey, Certificate []byte
}

// ObtainRequest asks for one.
type ObtainRequest struct {
	Domains, EmailAddresses  []string
	Bundle, EnableCommonName bool
	Profile, PreferredChain  string
	KeyType                  certcrypto.KeyType
}

// RenewOptions asks for a later one.
type RenewOptions struct {
	EmailAddresses           []string
	Bundle, EnableCommonName bool
	Profile, PreferredChain  string
}

// Certifier obtains none.
type Certifier struct{}

// Obtain fails.
func (*Certifier) Obtain(context.Context, ObtainRequest) (*Resource, error) {
	return nil, none.ErrACME
}

// Renew fails.
func (*Certifier) Renew(context.Context, Resource, *RenewOptions) (*Resource, error) {
	return nil, none.ErrACME
}
