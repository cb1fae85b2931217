// Package testpod is what runs inside the throw-away pods that try a new range of pod addresses
// out: one that answers, and one that calls.
package testpod

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// Ports of a pod that answers. OpenPort may be called by the pods that call, ClosedPort by none: a
// NetworkPolicy says so.
const (
	OpenPort   = 8123
	ClosedPort = 8124
)

const (
	dialTimeout = time.Second
	retryAfter  = 200 * time.Millisecond
)

// Serve accepts connections on the addresses, and closes them, until ctx ends.
func Serve(ctx context.Context, addresses ...string) error {
	eg, ctx := errgroup.WithContext(ctx)
	for _, address := range addresses {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if err != nil {
			return err
		}
		context.AfterFunc(ctx, func() { _ = listener.Close() })
		eg.Go(func() error { return accept(ctx, listener) })
	}
	return eg.Wait()
}

func accept(ctx context.Context, listener net.Listener) error {
	for {
		conn, err := listener.Accept()
		switch {
		case ctx.Err() != nil: // who ends it closes the listener
			return nil //nolint:nilerr // the error is that it was closed
		case err != nil:
			return err
		}
		_ = conn.Close()
	}
}

// Call connects to every address of reach, trying again until ctx ends, and then to those of
// refused, of which none may answer. It fails with one error that names all addresses that did not
// do as they should.
func Call(ctx context.Context, reach, refused []string) error {
	failures := make([]error, len(reach)+len(refused))
	var eg errgroup.Group
	eg.SetLimit(64)
	for i, address := range reach {
		eg.Go(func() error {
			failures[i] = until(ctx, address)
			return nil
		})
	}
	_ = eg.Wait() // failures are kept
	for i, address := range refused {
		eg.Go(func() error {
			if dial(context.WithoutCancel(ctx), address) == nil {
				failures[len(reach)+i] = fmt.Errorf("%s answers, and a NetworkPolicy says that it must not", address)
			}
			return nil
		})
	}
	_ = eg.Wait()
	return join(failures)
}

func until(ctx context.Context, address string) error {
	err := insist(ctx, func() error { return dial(ctx, address) })
	if err != nil {
		return fmt.Errorf("%s does not answer: %w", address, err)
	}
	return nil
}

// insist tries again until it works or ctx ends, and returns the last error.
func insist(ctx context.Context, try func() error) error {
	for {
		err := try()
		if err == nil {
			return nil
		}
		timer := time.NewTimer(retryAfter)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

func dial(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// join keeps to one line, and to what fits into a termination message.
func join(all []error) error {
	var texts []string
	for _, err := range all {
		if err == nil {
			continue
		}
		if len(texts) == 8 {
			texts = append(texts, "and more")
			break
		}
		texts = append(texts, err.Error())
	}
	if len(texts) == 0 {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}
