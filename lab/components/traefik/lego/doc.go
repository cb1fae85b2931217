// Package none stands where Traefik asks for certificates by ACME: what it calls of go-acme/lego, and each call says that there is none.
// With lego come the clients of some 150 providers of DNS, of which several are not served by every module proxy; labs have no ACME server.
package none

import "errors"

// ErrACME is what every call fails with.
var ErrACME = errors.New("this Traefik was built without ACME")
