//go:build !unix

package fleet

import "os/exec"

func apart(*exec.Cmd) {}

// interrupt ends a program where it cannot be asked to: that is as safe as any crash, and the next run carries on.
func interrupt(cmd *exec.Cmd) error { return cmd.Process.Kill() }
