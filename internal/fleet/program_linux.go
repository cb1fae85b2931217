package fleet

import (
	"os/exec"
	"syscall"
)

// apart keeps the Ctrl-C of the terminal from a program, and has it interrupted when this one is
// killed: no run goes on unwatched.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

func interrupt(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) }
