package fleet

import (
	"os/exec"
	"syscall"
)

// apart keeps the terminal's Ctrl-C from a program, and interrupts it when this one is killed: no
// run goes on unwatched.
func apart(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGINT}
}

func interrupt(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGINT) }
