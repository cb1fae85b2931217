// Package onnode makes the changes of package kubeadm to the files of the node that it runs on, in
// a pod that has them. It asks nothing of Kubernetes' API, which may be away meanwhile, and puts a
// file back whose program does not come up with it.
package onnode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// NodeFiles are those of the node that a pod has.
type NodeFiles struct {
	// Root is where the root of the node is mounted, Proc where all its processes are seen.
	Root, Proc string
	// Migration names the folder of backups.
	Migration string
	// Patience is how long a program may take to be ready with a changed file.
	Patience time.Duration
	// Run runs a program of the node's, in its namespaces.
	Run RunOnNode
}

// backups is the folder in which a migration keeps files as they were. Kubelets run nothing in it,
// and it is on the file system of what is renamed.
func (h NodeFiles) backups() string { return "/etc/kubernetes/replumb/" + h.Migration }

func (h NodeFiles) path(file string) string { return filepath.Join(h.Root, file) }

func (h NodeFiles) read(file string) ([]byte, error) {
	text, err := os.ReadFile(h.path(file))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, bare(err))
	}
	return text, nil
}

// bare is an error of a file without its path, which is the pod's.
func bare(err error) error {
	var ofPath *fs.PathError
	var ofLink *os.LinkError
	switch {
	case errors.As(err, &ofPath):
		return ofPath.Err
	case errors.As(err, &ofLink):
		return ofLink.Err
	}
	return err
}

func (h NodeFiles) exists(file string) bool {
	_, err := os.Lstat(h.path(file))
	return err == nil
}

// keep writes a file into the folder of backups, unless an earlier run has.
func (h NodeFiles) keep(name string, text []byte) error {
	if err := os.MkdirAll(h.path(h.backups()), 0o700); err != nil {
		return fmt.Errorf("making %s: %w", h.backups(), err)
	}
	to := filepath.Join(h.backups(), name)
	if h.exists(to) {
		return nil
	}
	return h.rename(to, text, 0o600, nil)
}

// replace renames a new file over an old one, whose owner and mode it gets. Programs find the one
// or the other, and a full disk leaves the old one.
func (h NodeFiles) replace(file string, text []byte) error {
	info, err := os.Stat(h.path(file))
	if err != nil {
		return fmt.Errorf("%s: %w", file, bare(err))
	}
	return h.rename(file, text, info.Mode().Perm(), info)
}

// putBack replaces a file by what it was. Without space for that the backup itself takes its place,
// if it is the same.
func (h NodeFiles) putBack(file string, text []byte) error {
	why := h.replace(file, text)
	if why == nil {
		return nil
	}
	backup := filepath.Join(h.backups(), filepath.Base(file))
	if kept, err := h.read(backup); err != nil || !bytes.Equal(kept, text) || os.Rename(h.path(backup), h.path(file)) != nil {
		return why
	}
	return syncDir(filepath.Dir(h.path(file)))
}

func (h NodeFiles) rename(file string, text []byte, mode fs.FileMode, like fs.FileInfo) error {
	temporary := h.path(h.temporary(file))
	err := write(temporary, text, mode, like)
	if err == nil {
		err = os.Rename(temporary, h.path(file))
	}
	if err == nil {
		err = syncDir(filepath.Dir(h.path(file)))
	}
	if err != nil {
		_ = os.Remove(temporary)
		return fmt.Errorf("writing %s, which is as it was: %w", file, bare(err))
	}
	return nil
}

// temporary is beside what is renamed, but never in a folder whose files kubelets run.
func (h NodeFiles) temporary(file string) string {
	if strings.HasPrefix(file, "/etc/kubernetes/") {
		return filepath.Join(h.backups(), "."+filepath.Base(file)+".new")
	}
	return filepath.Join(filepath.Dir(file), "."+filepath.Base(file)+".replumb")
}

func write(path string, text []byte, mode fs.FileMode, like fs.FileInfo) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if like != nil {
		if err := chown(f, like); err != nil {
			return err
		}
	}
	return f.Sync()
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Forget removes the backups of the migration.
func (h NodeFiles) Forget() error {
	if err := os.RemoveAll(h.path(h.backups())); err != nil {
		return fmt.Errorf("removing %s: %w", h.backups(), err)
	}
	err := os.Remove(filepath.Dir(h.path(h.backups()))) // which another migration may still use
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTEMPTY) || errors.Is(err, syscall.EEXIST) {
		return nil
	}
	return err
}

// pki has the certificates and keys of a control plane.
type pki struct{ serving, authority kubeadm.KeyPair }

const (
	servingFile   = kubeadm.PKIDir + "/apiserver.crt"
	servingKey    = kubeadm.PKIDir + "/apiserver.key"
	authorityFile = kubeadm.PKIDir + "/ca.crt"
	authorityKey  = kubeadm.PKIDir + "/ca.key"
)

func (h NodeFiles) pki() (p pki, err error) {
	if !h.exists(authorityKey) {
		return p, &kubeadm.UnusualError{
			File: authorityKey, Problem: "is not on this node, so that the authority of its certificates is kept elsewhere",
		}
	}
	for file, into := range map[string]*[]byte{
		servingFile: &p.serving.Certificate, servingKey: &p.serving.Key, authorityFile: &p.authority.Certificate, authorityKey: &p.authority.Key,
	} {
		if *into, err = h.read(file); err != nil {
			return p, err
		}
	}
	return p, nil
}
