// Package acme has accounts.
package acme

// Account is one.
type Account struct{}

// ExtendedAccount is one, and where it is.
type ExtendedAccount struct {
	Account
	Location string
}
