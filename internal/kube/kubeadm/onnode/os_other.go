//go:build !unix

package onnode

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
)

func chown(*os.File, fs.FileInfo) error { return errors.ErrUnsupported }

func chroot(*exec.Cmd, string) error { return errors.ErrUnsupported }
