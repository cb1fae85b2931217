//go:build !unix

package callout

import "os/exec"

// ownGroup does nothing where there are no process groups: the program itself is killed.
func ownGroup(*exec.Cmd) {}

func killGroup(*exec.Cmd) {}
