//go:build unix && !linux

package fleet

import (
	"os/exec"
	"syscall"
)

// apart keeps the Ctrl-C of the terminal from a program.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func interrupt(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) }
