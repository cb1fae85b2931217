// Package dns has no provider.
package dns

import (
	none "github.com/go-acme/lego/v5"
	"github.com/go-acme/lego/v5/challenge"
)

// NewDNSChallengeProviderByName fails.
func NewDNSChallengeProviderByName(string) (challenge.Provider, error) { return nil, none.ErrACME }
