package etcd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// cutOff ends in the middle.
type cutOff struct{ io.Reader }

func (r cutOff) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

func TestReceive(t *testing.T) {
	path := filepath.Join(t.TempDir(), "etcd.db.part")
	for range 2 { // the second time over what is there
		if err := receive(path, strings.NewReader("all of it")); err != nil {
			t.Fatal(err)
		}
	}
	if err := receive(path, cutOff{strings.NewReader("some of it")}); !engine.Retryable(err) {
		t.Errorf("cut off: %v", err)
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was cut off is still there: %v", err)
	}
}

func TestWriting(t *testing.T) {
	for cause, want := range map[error]error{
		syscall.ENOSPC: ErrNoRoom, syscall.EDQUOT: ErrNoRoom, syscall.EROFS: ErrNotPermitted, syscall.EACCES: ErrNotPermitted,
		syscall.ENOENT: ErrNoFolder, syscall.ENOTDIR: ErrNoFolder, syscall.EIO: syscall.EIO,
	} {
		err := writing("/a/b", fmt.Errorf("copying: %w", &fs.PathError{Op: "write", Path: "/a/b", Err: cause}))
		if !errors.Is(err, want) || !errors.Is(err, cause) {
			t.Errorf("%v: %v", cause, err)
		}
		if hint := fault.Advice(err) != ""; hint == errors.Is(want, syscall.EIO) {
			t.Errorf("%v: hint %v", err, hint)
		}
	}
	if err := writing("/a/b", nil); err != nil {
		t.Error(err)
	}
}
