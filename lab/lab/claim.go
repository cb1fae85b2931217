package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/cgroup"
)

// InUseError says that there is a lab of that name already.
type InUseError struct{ Name string }

func (e *InUseError) Error() string {
	return fmt.Sprintf("a lab called %q exists already\nhint: replumb-lab down --name %s, or choose another --name",
		e.Name, e.Name)
}

// claim makes the lab's folder and holds it locked against a concurrent Down until unlock, or the end of the process.
func claim(name string) (unlock func(), err error) {
	if err := os.MkdirAll(stateRoot, 0o755); err != nil {
		return nil, err
	}
	tree, err := cgroup.Open()
	if err != nil {
		return nil, err
	}
	err = os.Mkdir(stateDir(name), 0o700)
	if errors.Is(err, fs.ErrExist) || (err == nil && tree.Exists(cgroupOf(name))) {
		return nil, &InUseError{Name: name}
	}
	if err != nil {
		return nil, err
	}
	return lockDir(stateDir(name), unix.LOCK_EX|unix.LOCK_NB)
}

// lockDir locks a folder. The kernel takes the lock back when the process ends, however it ends.
func lockDir(dir string, how int) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), how); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("locking %s: %w", dir, err)
	}
	return func() { _ = f.Close() }, nil
}
