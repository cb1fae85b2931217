package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// Class is a stable word for why a request failed.
type Class string

// The classes of failures.
const (
	DNSNotFound    Class = "dns-nxdomain"
	DNSTimeout     Class = "dns-timeout"
	DNSServFail    Class = "dns-servfail"
	DNSOther       Class = "dns-other"
	ConnectRefused Class = "connect-refused"
	ConnectTimeout Class = "connect-timeout"
	Unreachable    Class = "unreachable"
	Reset          Class = "reset"
	Closed         Class = "closed"
	Timeout        Class = "timeout"
	HTTPStatus     Class = "http-status"
	BadCertificate Class = "bad-certificate"
	BadAnswer      Class = "bad-answer"
	WrongClient    Class = "wrong-client-address"
	WrongServer    Class = "wrong-server"
	// OwnLimit is a lack of ports, files or memory here, so it is not measured.
	OwnLimit Class = "own-limit"
	Other    Class = "other"
)

// Failure is an error with its class.
type Failure struct {
	Class Class
	Err   error
}

func (f *Failure) Error() string { return string(f.Class) + ": " + f.Err.Error() }
func (f *Failure) Unwrap() error { return f.Err }

// saysNothing reports failures of the prober itself: no room for the request, or standing still.
func (f *Failure) saysNothing(stood time.Duration) bool {
	switch f.Class {
	case OwnLimit:
		return true
	case DNSTimeout, ConnectTimeout, Timeout:
		return stood > LateAfter
	}
	return false
}

func failf(class Class, format string, args ...any) error {
	return &Failure{Class: class, Err: fmt.Errorf(format, args...)}
}

func asFailure(err error) *Failure {
	var failure *Failure
	if errors.As(err, &failure) {
		return failure
	}
	return &Failure{Class: classify(err), Err: err}
}

func classify(err error) Class {
	var dns *net.DNSError
	if errors.As(err, &dns) {
		return classifyDNS(dns)
	}
	var untrusted *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	switch {
	case errors.As(err, &untrusted):
		return BadCertificate
	case errors.As(err, &plain):
		return BadAnswer
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, net.ErrClosed):
		return Closed
	case isTimeout(err):
		return classifyTimeout(err)
	}
	return classifyErrno(err)
}

func classifyErrno(err error) Class {
	var errno syscall.Errno
	if !errors.As(err, &errno) {
		return Other
	}
	switch errno {
	case syscall.ECONNREFUSED:
		return ConnectRefused
	case syscall.EHOSTUNREACH, syscall.ENETUNREACH:
		return Unreachable
	case syscall.ECONNRESET, syscall.EPIPE, syscall.ECONNABORTED:
		return Reset
	case syscall.EADDRNOTAVAIL, syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM:
		return OwnLimit
	}
	return Other
}

func classifyDNS(err *net.DNSError) Class {
	switch {
	case err.IsTimeout:
		return DNSTimeout
	case err.IsNotFound:
		return DNSNotFound
	case err.IsTemporary:
		return DNSServFail
	}
	return DNSOther
}

func classifyTimeout(err error) Class {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return ConnectTimeout
	}
	return Timeout
}

func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return true
	}
	var timeout interface{ Timeout() bool }
	return errors.As(err, &timeout) && timeout.Timeout()
}
