//go:build unix

package proxyrules

import (
	"os/exec"
	"syscall"
)

// enter has a program run from another root.
func enter(cmd *exec.Cmd, root string) error {
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Chroot: root}
	return nil
}
