// Package cgroup keeps all processes of a lab in one place of the control group hierarchy, so that they can be found
// and ended however they were started and whatever became of their parents.
//
// Both kinds of hierarchy are handled: cgroup v2 (one tree) and v1 (a tree per controller, all given the same paths).
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Tree is the control group hierarchy of this machine.
type Tree struct {
	roots []string // mount points: one for v2, one per controller for v1
	v2    bool
}

// Open finds out how control groups are mounted under /sys/fs/cgroup.
func Open() (*Tree, error) { return openAt("/sys/fs/cgroup") }

func openAt(mount string) (*Tree, error) {
	if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err == nil {
		return &Tree{roots: []string{mount}, v2: true}, nil
	}
	entries, err := os.ReadDir(mount)
	if err != nil {
		return nil, fmt.Errorf("looking for control groups: %w", err)
	}
	t := &Tree{}
	for _, e := range entries {
		root := filepath.Join(mount, e.Name())
		if e.Type()&fs.ModeSymlink != 0 { // cpu,cpuacct and the like are mounted once and linked
			continue
		}
		// This takes in the unified hierarchy of a hybrid setup: it has no controllers, but runc makes groups there too.
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil {
			t.roots = append(t.roots, root)
		}
	}
	if len(t.roots) == 0 {
		return nil, fmt.Errorf("no control group hierarchy is mounted under %s", mount)
	}
	return t, nil
}

// Unified is the folder of the group at path in the hierarchy of version 2, which every kernel has whose machine is set up as v2 or hybrid.
func (t *Tree) Unified(path string) (string, error) {
	for _, root := range t.roots {
		if t.v2 || filepath.Base(root) == "unified" {
			return filepath.Join(root, path), nil
		}
	}
	return "", fmt.Errorf("no control groups of version 2 are mounted, of which there is to be %s", path)
}

// Create makes the group at path ("/a/b") in every hierarchy, ready to have processes or further groups in it.
func (t *Tree) Create(path string) error {
	for _, root := range t.roots {
		dir := root
		for _, part := range strings.Split(strings.Trim(path, "/"), "/") {
			if err := t.delegate(dir); err != nil {
				return err
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("creating control group: %w", err)
			}
			if err := inheritCPUSet(parent, dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// delegate turns the controllers on for the children of a v2 group; it does nothing for v1.
func (t *Tree) delegate(dir string) error {
	if !t.v2 {
		return nil
	}
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(available)) {
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644)
		// Controllers that kubelet does without may be refused (rdma, misc in some containers).
		if err != nil && slices.Contains([]string{"cpu", "cpuset", "memory", "pids"}, c) {
			return fmt.Errorf("enabling controller %s below %s: %w", c, dir, err)
		}
	}
	return nil
}

// inheritCPUSet copies the parent's processors and memory nodes: in v1 they start empty, and no process can enter a
// group without them.
func inheritCPUSet(parent, dir string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.clone_children")); err != nil {
			continue // not v1
		}
		value, err := os.ReadFile(filepath.Join(parent, file))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, file), value, 0o644); err != nil {
			return fmt.Errorf("setting %s of %s: %w", file, dir, err)
		}
	}
	return nil
}

// Prefer gives the group at path so many times the processor time of each one beside it, where both want more than there is.
func (t *Tree) Prefer(path string, times int) error {
	for _, root := range t.roots {
		for file, usual := range map[string]int{"cpu.weight": 100, "cpu.shares": 1024} {
			at := filepath.Join(root, path, file)
			if _, err := os.Stat(at); err != nil {
				continue // of the other version, or of another controller
			}
			if err := os.WriteFile(at, []byte(strconv.Itoa(usual*times)), 0o644); err != nil {
				return fmt.Errorf("preferring control group %s: %w", path, err)
			}
		}
	}
	return nil
}

// Join moves the process pid into the group at path in every hierarchy.
func (t *Tree) Join(path string, pid int) error {
	for _, root := range t.roots {
		procs := filepath.Join(root, path, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("joining control group: %w", err)
		}
	}
	return nil
}

// Exists reports whether the group at path is there in any hierarchy.
func (t *Tree) Exists(path string) bool {
	return slices.ContainsFunc(t.roots, func(root string) bool {
		_, err := os.Stat(filepath.Join(root, path))
		return err == nil
	})
}

// Destroy kills every process in the group at path and below, and removes the groups. It returns when nothing of them
// is left, or with an error naming what would not go when ctx ends. A group that does not exist is no error.
func (t *Tree) Destroy(ctx context.Context, path string) error {
	if strings.Trim(path, "/") == "" {
		return errors.New("refusing to destroy the root control group")
	}
	var killed []int
	err := poll(ctx, func() error {
		// Kill again in every round: a process may have forked, or entered the group, since the last one. Once the
		// group is gone nothing can enter it any more, so this ends.
		left := t.pids(path)
		for _, pid := range left {
			_ = unix.Kill(pid, unix.SIGKILL) // gone already is as good
		}
		killed = append(killed, left...)
		if len(left) > 0 {
			return fmt.Errorf("control group %s still holds processes %v", path, left)
		}
		return t.remove(path)
	})
	if err != nil {
		return err
	}
	// Orphans are buried by the machine's init. Most do so at once; one that never does must not hold us up.
	ctx, cancel := context.WithTimeout(ctx, burial)
	defer cancel()
	_ = poll(ctx, func() error {
		for _, pid := range killed {
			if unix.Kill(pid, 0) == nil {
				return fmt.Errorf("process %d is not gone", pid)
			}
		}
		return nil
	})
	return nil
}

// burial is how long Destroy waits for init to take note of dead processes.
const burial = 2 * time.Second

// poll calls f until it succeeds, and returns its last error when ctx ends.
func poll(ctx context.Context, f func() error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		err := f()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

// pids lists the processes in the group at path and below, in any hierarchy.
func (t *Tree) pids(path string) []int {
	var pids []int
	for _, root := range t.roots {
		_ = filepath.WalkDir(filepath.Join(root, path), func(file string, d fs.DirEntry, err error) error {
			if err != nil || d.Name() != "cgroup.procs" {
				return nil //nolint:nilerr // groups may vanish while we walk
			}
			data, err := os.ReadFile(file)
			if err != nil {
				return nil //nolint:nilerr // likewise
			}
			for _, field := range strings.Fields(string(data)) {
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
			return nil
		})
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// remove deletes the group at path, children first.
func (t *Tree) remove(path string) error {
	var errs []error
	for _, root := range t.roots {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(root, path), func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, dir := range dirs {
			if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				errs = append(errs, fmt.Errorf("rmdir %s: %w", dir, err))
			}
		}
	}
	return errors.Join(errs...)
}
