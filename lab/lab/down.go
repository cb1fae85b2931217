package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/cgroup"
)

// downDeadline bounds the end of a lab: processes that do not die when killed are stuck in the kernel.
const downDeadline = 30 * time.Second

// BusyError says that a lab is being brought up or taken down by another process.
type BusyError struct{ Name string }

func (e *BusyError) Error() string {
	return fmt.Sprintf("lab %q is being brought up or taken down by another process\nhint: wait for it, or end it first",
		e.Name)
}

// Down takes the lab of that name down: it kills its processes, with which its networks and mounts go, and removes
// its control groups and files. It works on whatever is left of a lab, and reports whether there was anything. As long as there
// are other labs in its fabric it fails with an *InvalidError.
func Down(ctx context.Context, name string) (existed bool, err error) {
	if !validName.MatchString(name) {
		return false, &InvalidError{"name", fmt.Sprintf("%q is not a lab name", name), "it is the --name that was given to up"}
	}
	if os.Geteuid() != 0 {
		return false, errNotRoot
	}
	if err := endClusterAPI(ctx, name); err != nil {
		return true, err
	}
	if err := requireAlone(name); err != nil {
		return true, err
	}
	ctx, cancel := context.WithTimeout(ctx, downDeadline)
	defer cancel()
	if _, err := os.Stat(stateDir(name)); err == nil {
		unlock, err := lockDir(stateDir(name), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return true, &BusyError{Name: name}
		}
		if err != nil {
			return true, err
		}
		defer unlock()
		existed = true
	}
	tree, err := cgroup.Open()
	if err != nil {
		return existed, err
	}
	existed = existed || tree.Exists(cgroupOf(name))
	return existed, destroy(ctx, name)
}

// destroy removes processes first, since only then is nothing mounted below the folder that is removed next.
func destroy(ctx context.Context, name string) error {
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	if err := tree.Destroy(ctx, cgroupOf(name)); err != nil {
		return err
	}
	if l, err := Open(name); err == nil && l.Fabrics().isGuest() {
		if err := l.Fabrics().leave(ctx); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(stateDir(name)); err != nil {
		return fmt.Errorf("removing the files of lab %s: %w", name, err)
	}
	if err := unix.Rmdir(stateRoot); err != nil && !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removing %s: %w", stateRoot, err)
	}
	return nil
}
