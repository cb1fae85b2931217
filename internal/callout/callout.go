// Package callout calls programs and URLs outside of the cluster, with JSON in and out.
package callout

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/replumb/replumb/api/v1alpha1"
	"github.com/replumb/replumb/internal/engine"
)

const (
	// DefaultTimeout of an Action that has none.
	DefaultTimeout = 30 * time.Second

	// maxAnswer protects memory from endless answers.
	maxAnswer = 16 << 20
)

// Error says that a call failed.
type Error struct {
	// Action is the program without arguments, or scheme and host: the rest may be secret.
	Action string
	Err    error
	// TimedOut is true if there was no answer within the time of the Action.
	TimedOut bool
	// Output is the end of stderr. It may be private, so errors have it only if the Action
	// publishes it.
	Output string
}

func (e *Error) Error() string {
	text := fmt.Sprintf("calling %s: %v", e.Action, e.Err)
	if e.Output != "" {
		text += "; its output is on the terminal of " + operator()
	}
	return text
}

func (e *Error) Private() string { return e.Output }

func operator() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return "the operator"
}

func (e *Error) Unwrap() error { return e.Err }

// ErrNoAnswer says that a call went well and nothing came back.
var ErrNoAnswer = errors.New("it did not answer")

var (
	errTooLong   = fmt.Errorf("its answer is longer than %d MiB", maxAnswer>>20)
	errNoAction  = errors.New("neither exec nor http is set")
	errTwoAction = errors.New("both exec and http are set")
)

// Call sends the request and reads the answer, both as JSON; with a nil answer it reads none.
// Errors are of type *Error and hold no part of a URL but scheme and host; others are those of the
// fence of ctx, which is asked first, and then nothing was called.
//
// A program gets the request on stdin, with the variables of Environment and of an Environer, and
// answers on stdout. No shell is involved. It leads its own process group, so that a Ctrl-C for
// replumb does not end it; when time is up, the group gets SIGTERM and two seconds later SIGKILL.
//
// A URL gets the request as the body of a POST. Redirects are not followed, since they lead to
// places that are not written down. Proxies are those of HTTPS_PROXY, HTTP_PROXY and NO_PROXY.
func Call(ctx context.Context, action v1alpha1.Action, request, answer any) error {
	if err := engine.MayWrite(ctx, true); err != nil {
		return err
	}
	return call(ctx, action, request, answer)
}

// Called reports whether an error of Call is of the call, and not of the fence before it.
func Called(err error) bool { return errors.As(err, new(*Error)) }

func call(ctx context.Context, action v1alpha1.Action, request, answer any) error {
	timeout := DefaultTimeout
	if action.Timeout != nil {
		timeout = action.Timeout.Duration
	}
	body, err := json.Marshal(request)
	if err != nil {
		return &Error{Action: Name(action), Err: fmt.Errorf("encoding the request: %w", err)}
	}
	ours, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	got, said, err := send(ours, action, environ(request, action), body)
	if err == nil && answer != nil {
		err = decode(got, answer)
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return &Error{Action: Name(action), Err: fmt.Errorf("cancelled: %w", context.Cause(ctx))}
	case ours.Err() != nil:
		return &Error{Action: Name(action), Err: late(timeout, err), TimedOut: true, Output: said}
	}
	return &Error{Action: Name(action), Err: err, Output: said}
}

func send(ctx context.Context, action v1alpha1.Action, env []string, body []byte) (got []byte, said string, err error) {
	switch {
	case action.Exec != nil && action.HTTP != nil:
		return nil, "", errTwoAction
	case action.Exec != nil:
		got, said, err = run(ctx, action.Exec.Command, env, body)
		if err != nil && said != "" && action.Exec.PublishOutput {
			err, said = fmt.Errorf("%w: %s", err, said), ""
		}
		return got, said, err
	case action.HTTP != nil:
		got, err = post(ctx, *action.HTTP, body)
		return got, "", err
	}
	return nil, "", errNoAction
}

// Environer also passes a request as KEY=value, for programs that read no JSON.
type Environer interface {
	Environ() []string
}

// Environment lists the variables that every program gets if they are set; a trailing * is a
// prefix. Others, such as credentials, need to be named by the Action.
func Environment() []string {
	return []string{"PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "LC_*", "TMPDIR", "TZ"}
}

func environ(request any, action v1alpha1.Action) []string {
	all := []string{}
	var named []string
	if action.Exec != nil {
		named = action.Exec.Env
	}
	for _, variable := range os.Environ() {
		if passes(variable, append(Environment(), named...)) {
			all = append(all, variable)
		}
	}
	if e, ok := request.(Environer); ok {
		all = append(all, e.Environ()...)
	}
	return all
}

func passes(variable string, names []string) bool {
	name, _, _ := strings.Cut(variable, "=")
	return slices.ContainsFunc(names, func(allowed string) bool {
		prefix, any := strings.CutSuffix(allowed, "*")
		return name == allowed || any && strings.HasPrefix(name, prefix)
	})
}

func late(timeout time.Duration, err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("no answer within %s", timeout)
	}
	return fmt.Errorf("no answer within %s: %w", timeout, err)
}

// Check finds, without making the call, a program or an environment variable that is missing.
func Check(action v1alpha1.Action) error {
	var err error
	switch {
	case action.Exec != nil && action.HTTP != nil:
		err = errTwoAction
	case action.Exec != nil:
		err = lookPath(action.Exec.Command)
	case action.HTTP != nil:
		_, err = target(*action.HTTP)
	default:
		err = errNoAction
	}
	if err != nil {
		return &Error{Action: Name(action), Err: err}
	}
	return nil
}

// Name is what an Action may be called in any output.
func Name(action v1alpha1.Action) string {
	switch {
	case action.Exec != nil && len(action.Exec.Command) > 0:
		return action.Exec.Command[0]
	case action.HTTP != nil:
		if u, err := target(*action.HTTP); err == nil {
			return u.Scheme + "://" + u.Host
		}
		if action.HTTP.URLFromEnv != "" {
			return "the URL in " + action.HTTP.URLFromEnv
		}
		return "a URL"
	}
	return "nothing"
}

func decode(body []byte, answer any) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return ErrNoAnswer
	}
	d := json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(answer); err != nil {
		return fmt.Errorf("its answer is not the JSON that was expected: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("its answer goes on after the JSON")
	}
	return nil
}
