// Package ownnet gives a test a network namespace of its own.
package ownnet

import (
	"errors"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

// Enter runs the rest of the test in a new network namespace, whose loopback interface is down. It
// needs root. The test's goroutine stays on one thread until the test ends; goroutines that it
// starts are not in the namespace unless they enter it by the handle, which the test must not
// close.
func Enter(t testing.TB) netns.NsHandle {
	t.Helper()
	runtime.LockOSThread()
	was, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	own, err := netns.New()
	if err != nil {
		t.Fatal(errors.Join(err, was.Close()))
	}
	t.Cleanup(func() {
		// A thread that stays in the namespace must not serve another test: it ends with its
		// goroutine while it is locked.
		if err := netns.Set(was); err != nil {
			t.Error(err)
		} else {
			runtime.UnlockOSThread()
		}
		if err := errors.Join(own.Close(), was.Close()); err != nil {
			t.Error(err)
		}
	})
	return own
}
