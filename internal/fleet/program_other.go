//go:build !unix

package fleet

import "os/exec"

func apart(*exec.Cmd) {}

// interrupt ends a program that cannot be asked to, which is as safe as any crash.
func interrupt(cmd *exec.Cmd) error { return cmd.Process.Kill() }
