// Package tlsalpn01 has the option of challenges by TLS, which none takes.
package tlsalpn01

import (
	"time"

	none "github.com/go-acme/lego/v5"
)

// ACMETLS1Protocol is the protocol that such challenges are negotiated by (RFC 8737). Traefik tells them by it.
const ACMETLS1Protocol = "acme-tls/1"

// Option is one.
type Option struct{}

// SetDelay is an option.
func SetDelay(time.Duration) Option { return Option{} }

// ChallengeBlocks fails.
func ChallengeBlocks(string, string) ([]byte, []byte, error) { return nil, nil, none.ErrACME }
