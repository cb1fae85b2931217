package etcd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/replumb/replumb/internal/engine"
)

type briefError struct {
	text string
	err  error
}

func (e *briefError) Error() string { return e.text }
func (e *briefError) Unwrap() error { return e.err }

func brief(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if s, ok := status.FromError(err); ok {
		text = s.Message()
	}
	if i := strings.LastIndex(text, "desc = "); i >= 0 { // errors of connections have errors in their text
		text = strings.Trim(text[i+len("desc = "):], `"`)
	}
	for _, prefix := range []string{"transport: ", "Error while dialing: ", "authentication handshake failed: ", "etcdserver: "} {
		text = strings.TrimPrefix(text, prefix)
	}
	if text == context.DeadlineExceeded.Error() {
		text = "no answer in time"
	}
	return &briefError{text: text, err: err}
}

func connectHint(err error) string {
	if text := err.Error(); strings.Contains(text, "x509:") || strings.Contains(text, "tls:") {
		return "the certificates of etcd are its own: use the authority and a client certificate of etcd, not those of the API server"
	}
	return "are these client URLs of members, and are they reached from here?"
}

// passing reports whether a repeated call may succeed: members were busy, voting or out of touch
// (go.etcd.io/etcd/api/v3/v3rpc/rpctypes).
func passing(err error) bool {
	for _, known := range []error{
		context.DeadlineExceeded, rpctypes.ErrMemberLearnerNotReady, rpctypes.ErrMemberNotEnoughStarted,
		rpctypes.ErrTooManyLearners, rpctypes.ErrNotLeader, rpctypes.ErrFutureRev, rpctypes.ErrMemberNotFound,
	} {
		if errors.Is(err, known) {
			return true
		}
	}
	switch code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted:
		return !errors.Is(err, rpctypes.ErrNoSpace)
	}
	return false
}

func code(err error) codes.Code {
	var known rpctypes.EtcdError
	if errors.As(err, &known) {
		return known.Code()
	}
	return status.Code(err)
}

// failed wraps an error, retryably where that can help.
func failed(err error, format string, args ...any) error {
	doing := fmt.Sprintf(format, args...)
	if passing(err) {
		return engine.NotYet("%s: %w", doing, brief(err))
	}
	return fmt.Errorf("%s: %w", doing, brief(err))
}

// Failed is failed for those who read or write what is stored, by KV.
func Failed(err error, format string, args ...any) error { return failed(err, format, args...) }

func refusal(err error) error {
	var refused *RefusedError
	if errors.As(err, &refused) && refused.Passing {
		return engine.NotYet("%w", err)
	}
	return err
}

// reason is an error of a file without its path.
func reason(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}
