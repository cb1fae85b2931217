package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/engine/fault"
)

// Errors of snapshots, beside ErrCorrupt.
var (
	// ErrNoRoom says that the disk, or what the user may have of it, is full.
	ErrNoRoom = errors.New("there is no room left")
	// ErrTaken says that a file is there that this run did not make.
	ErrTaken = errors.New("there is a file already that is not of this run")
	// ErrNotPermitted says that the file must not be written there.
	ErrNotPermitted = errors.New("it must not be written there")
	// ErrNoFolder says that the folder is not there.
	ErrNoFolder = errors.New("there is no such folder")
	// ErrSharedFolder says that others may write files into the folder.
	ErrSharedFolder = errors.New("others may write in its folder")
	// ErrBehind says that a snapshot has less than the cluster had when it was asked for.
	ErrBehind = errors.New("the snapshot is older than what was there before it")
)

// Snapshot saves a member's data, preferably not the leader's, and describes it in a JSON file
// beside. The file appears once it is verified and on disk, and replaces only one of the same run.
func (c *Client) Snapshot(ctx context.Context, path string) (SnapshotInfo, error) {
	if err := c.mayWrite(path); err != nil {
		return SnapshotInfo{}, err
	}
	cluster, err := c.loadAgreed(ctx)
	if err != nil {
		return SnapshotInfo{}, err
	}
	source := cluster.nextLeader(nil)
	if source == nil {
		source = cluster.Leading()
	}
	part := path + ".part" // by a name of its own, so that what a kill leaves is found and written over
	defer func() { _ = os.Remove(part) }()
	info, err := c.save(ctx, source, part)
	if err != nil {
		return SnapshotInfo{}, err
	}
	info.Path, info.Run, info.Taken = path, c.config.Run, time.Now().UTC().Truncate(time.Second)
	info.Cluster, info.Member = fmt.Sprintf("%x", cluster.ID), fmt.Sprintf("%x", source.ID)
	// The mark of its owner comes first: without it no later run would know it as its own.
	if err := describe(info); err != nil {
		return SnapshotInfo{}, err
	}
	if err := os.Rename(part, path); err != nil {
		return SnapshotInfo{}, writing(path, err)
	}
	return info, writing(path, syncFolder(path))
}

func (c *Client) save(ctx context.Context, source *Member, part string) (info SnapshotInfo, err error) {
	var seen int64
	err = c.ask(ctx, source, 0, func(ctx context.Context, one *clientv3.Client) error {
		if seen, err = c.read(ctx, one); err != nil {
			return failed(err, "asking etcd member %s for its revision", source.Called())
		}
		stream, err := one.SnapshotWithVersion(ctx)
		if err != nil {
			return failed(err, "asking etcd member %s for a snapshot", source.Called())
		}
		defer func() { _ = stream.Snapshot.Close() }()
		return receive(part, stream.Snapshot)
	})
	if err != nil {
		return info, err
	}
	if info, err = verifySnapshot(part); err != nil {
		return info, err
	}
	if info.Revision < seen {
		return info, fmt.Errorf("%s: %w: revision %d, and it was %d", part, ErrBehind, info.Revision, seen)
	}
	return info, nil
}

// read is a linearizable read, after which the member and its snapshots have everything up to that
// revision.
func (c *Client) read(ctx context.Context, one *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.config.Timeout)
	defer cancel()
	answer, err := one.Get(ctx, "health")
	if err != nil {
		return 0, err
	}
	return answer.Header.Revision, nil
}

// create makes a new file, in place of what a kill may have left, and follows no link.
func create(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, writing(path, err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return f, writing(path, err)
}

// receive writes a new file to the disk, and removes it on failure.
func receive(path string, from io.Reader) error {
	f, err := create(path)
	if err != nil {
		return err
	}
	to := &remembering{to: f}
	_, err = io.Copy(to, from)
	switch {
	case to.err != nil:
		err = writing(path, to.err)
	case err != nil:
		err = engine.NotYet("receiving the snapshot: %w", brief(err))
	default:
		err = writing(path, f.Sync())
	}
	if err = errors.Join(err, writing(path, f.Close())); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	return nil
}

type remembering struct {
	to  io.Writer
	err error
}

func (w *remembering) Write(p []byte) (int, error) {
	n, err := w.to.Write(p)
	w.err = err
	return n, err
}

func infoPath(path string) string { return path + ".json" }

func describe(info SnapshotInfo) error {
	body, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	path, part := infoPath(info.Path), infoPath(info.Path)+".part"
	defer func() { _ = os.Remove(part) }()
	f, err := create(part)
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return writing(part, err)
	}
	return writing(path, os.Rename(part, path))
}

func (c *Client) ownInfo(path string) (*SnapshotInfo, error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, writing(path, err)
	}
	info := &SnapshotInfo{Path: path}
	body, err := os.ReadFile(infoPath(path))
	if err != nil || json.Unmarshal(body, info) != nil || info.Run == "" || info.Run != c.config.Run {
		return nil, &fault.Hinted{Err: fmt.Errorf("%s: %w", path, ErrTaken), Hint: "name another file, or move this one away"}
	}
	return info, nil
}

func (c *Client) mayWrite(path string) error {
	if err := ownFolder(path); err != nil {
		return err
	}
	_, err := c.ownInfo(path)
	return err
}

// ownFolder refuses a folder that others may write in, such as /tmp. Windows has no such modes.
func ownFolder(path string) error {
	folder := filepath.Dir(path)
	stat, err := os.Stat(folder)
	if err != nil {
		return writing(path, err)
	}
	if mode := stat.Mode().Perm(); mode&0o022 != 0 && runtime.GOOS != "windows" {
		return &fault.Hinted{
			Err:  fmt.Errorf("writing %s: %w: the mode of %s is %#o", path, ErrSharedFolder, folder, mode),
			Hint: "name a file in a folder of yours, or chmod go-w it: a snapshot holds all Secrets",
		}
	}
	return nil
}

// OwnSnapshot verifies this run's earlier snapshot: nil if there is none, ErrTaken if it is another
// run's, ErrCorrupt if it has changed.
func (c *Client) OwnSnapshot(path string) (*SnapshotInfo, error) {
	was, err := c.ownInfo(path)
	if was == nil || err != nil {
		return nil, err
	}
	is, err := verifySnapshot(path)
	switch {
	case err != nil:
		return nil, &fault.Hinted{Err: err, Hint: "move it away, and run this again to take another"}
	case is.SHA256 != was.SHA256:
		return nil, &fault.Hinted{
			Err: fmt.Errorf("%s: %w: it is another one than %s says", path, ErrCorrupt, infoPath(path)), Hint: "move both away",
		}
	}
	return was, nil
}

func syncFolder(path string) error {
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

func writing(path string, err error) error {
	var named error
	var hint string
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, syscall.EFBIG):
		named, hint = ErrNoRoom, "make room, or name a file on another disk"
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		named, hint = ErrNotPermitted, "name a file in a folder of yours"
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		named, hint = ErrNoFolder, "make the folder, or name another file"
	default:
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return &fault.Hinted{Err: fmt.Errorf("writing %s: %w: %w", path, named, err), Hint: hint}
}
