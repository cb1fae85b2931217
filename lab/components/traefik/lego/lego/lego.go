// Package lego has no client.
package lego

import (
	"crypto/x509"
	"net/http"
	"time"

	none "github.com/go-acme/lego/v5"
	"github.com/go-acme/lego/v5/acme"
	"github.com/go-acme/lego/v5/certificate"
	"github.com/go-acme/lego/v5/challenge"
	"github.com/go-acme/lego/v5/challenge/dns01"
	"github.com/go-acme/lego/v5/challenge/http01"
	"github.com/go-acme/lego/v5/challenge/tlsalpn01"
	"github.com/go-acme/lego/v5/registration"
)

// DirectoryURLLetsEncrypt is the authority that is asked by default.
const DirectoryURLLetsEncrypt = "https://acme-v02.api.letsencrypt.org/directory"

// User is who has an account.
type User interface{ GetRegistration() *acme.ExtendedAccount }

// Config is a client's.
type Config struct {
	CADirURL, UserAgent string
	HTTPClient          *http.Client
	Certificate         struct{ Timeout time.Duration }
}

// Client is what there is none of.
type Client struct {
	Certificate  *certificate.Certifier
	Challenge    *Challenges
	Registration *registration.Registrar
}

// Challenges are a client's.
type Challenges struct{}

// NewConfig returns one.
func NewConfig(User) *Config { return &Config{} }

// NewClient fails.
func NewClient(*Config) (*Client, error) { return nil, none.ErrACME }

// CreateCertPool fails.
func CreateCertPool([]string, bool) (*x509.CertPool, error) { return nil, none.ErrACME }

// SetDNS01Provider fails.
func (*Challenges) SetDNS01Provider(challenge.Provider, ...dns01.Option) error { return none.ErrACME }

// SetHTTP01Provider fails.
func (*Challenges) SetHTTP01Provider(challenge.Provider, ...http01.Option) error {
	return none.ErrACME
}

// SetTLSALPN01Provider fails.
func (*Challenges) SetTLSALPN01Provider(challenge.Provider, ...tlsalpn01.Option) error {
	return none.ErrACME
}
