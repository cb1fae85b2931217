// Package http01 has the option of challenges by HTTP, which none takes.
package http01

import "time"

// PathPrefix is where such challenges are answered.
const PathPrefix = "/.well-known/acme-challenge/"

// Option is one.
type Option struct{}

// SetDelay is an option.
func SetDelay(time.Duration) Option { return Option{} }
