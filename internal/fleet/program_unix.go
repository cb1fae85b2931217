//go:build unix && !linux

package fleet

import (
	"os/exec"
	"syscall"
)

// apart has a program not get the Ctrl-C that is meant for this one.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func interrupt(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) }
