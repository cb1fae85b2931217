//go:build unix

package onnode

import (
	"io/fs"
	"os"
	"os/exec"
	"syscall"
)

// chown gives a file the owner of another one.
func chown(f *os.File, like fs.FileInfo) error {
	owner, is := like.Sys().(*syscall.Stat_t)
	if !is {
		return nil
	}
	return f.Chown(int(owner.Uid), int(owner.Gid))
}

// chroot has a program run in another root.
func chroot(c *exec.Cmd, root string) error {
	c.SysProcAttr, c.Dir = &syscall.SysProcAttr{Chroot: root}, "/"
	return nil
}
