package fleet

import (
	"os/exec"
	"syscall"
)

// apart has a program not get the Ctrl-C that is meant for this one, and be interrupted if this one is killed, so that no run goes on that
// no one waits for.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

func interrupt(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) }
