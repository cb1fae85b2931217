package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

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

// TestDescribeFollowsNoLink: in a folder that others may write a link would have replumb overwrite
// any file of its user.
func TestDescribeFollowsNoLink(t *testing.T) {
	dir := t.TempDir()
	victim, path := filepath.Join(dir, "victim"), filepath.Join(dir, "etcd.db")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, infoPath(path)+".part"); err != nil {
		t.Fatal(err)
	}
	if err := describe(SnapshotInfo{Path: path}); err != nil {
		t.Fatal(err)
	}
	if body, err := os.ReadFile(victim); err != nil || string(body) != "precious" {
		t.Errorf("%q, %v", body, err)
	}
	if at, err := os.Lstat(infoPath(path)); err != nil || !at.Mode().IsRegular() {
		t.Errorf("%v, %v", at, err)
	}
}

// TestFolderOfOthers: who may write in the folder could exchange the snapshot, which is read again.
func TestFolderOfOthers(t *testing.T) {
	for mode, want := range map[os.FileMode]error{0o700: nil, 0o755: nil, 0o775: ErrSharedFolder, 0o707: ErrSharedFolder, os.ModeSticky | 0o777: ErrSharedFolder} {
		dir := t.TempDir()
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		c := &Client{}
		if err := c.mayWrite(filepath.Join(dir, "etcd.db")); !errors.Is(err, want) || want != nil && fault.Advice(err) == "" {
			t.Errorf("%v: %v", mode, err)
		}
	}
	if err := (&Client{}).mayWrite(filepath.Join(t.TempDir(), "none", "etcd.db")); !errors.Is(err, ErrNoFolder) {
		t.Errorf("no folder: %v", err)
	}
}

// TestOnlyMembersWithTLS: a member says itself where it is, and etcd's client leaves TLS away for
// http.
func TestOnlyMembersWithTLS(t *testing.T) {
	c := &Client{config: Config{TLS: &tls.Config{MinVersion: tls.VersionTLS12}}}
	mixed := []string{"http://192.0.2.1:2379", "https://10.0.0.1:2379", "unix://x", "10.0.0.1:2379"}
	if got := c.safe(mixed); !slices.Equal(got, mixed[1:2]) {
		t.Errorf("asks %v", got)
	}
	m := &Member{Name: "cp1", ClientURLs: mixed[:1]}
	err := c.ask(t.Context(), m, 0, func(context.Context, *clientv3.Client) error { t.Error("it was asked"); return nil })
	if !errors.Is(err, ErrPlain) || !strings.Contains(err.Error(), mixed[0]) {
		t.Errorf("a member without TLS: %v", err)
	}
	if got := (&Client{}).safe(mixed); !slices.Equal(got, mixed) {
		t.Errorf("an etcd without TLS: asks %v", got)
	}
}
