package nodecleanup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// legacyTime allows for others that change the same tables.
const legacyTime = 30 * time.Second

// legacyPart is in tables of before nftables, which only iptables reads and writes: the node's own
// is run from its root. A node with such tables and without iptables is an error.
type legacyPart struct {
	Host
	NetworkTraces
}

// inUse reports whether the kernel has such tables for a family, by a file that lists them.
func inUse(list string) bool {
	body, err := os.ReadFile(list)
	return err == nil && len(bytes.TrimSpace(body)) > 0
}

// family is a program's name without what it does, and where the kernel lists its tables.
type legacyFamily struct{ program, list string }

// legacyFamilies are of this thread's network namespace; /proc/self is the first thread's.
func legacyFamilies() []legacyFamily {
	return []legacyFamily{{"iptables", "/proc/thread-self/net/ip_tables_names"}, {"ip6tables", "/proc/thread-self/net/ip6_tables_names"}}
}

func (p legacyPart) find() ([]string, error) {
	var all []string
	err := p.each(func(_ legacyFamily, found []string, _ string) error {
		all = append(all, found...)
		return nil
	})
	return all, err
}

func (p legacyPart) remove() error {
	return p.each(func(f legacyFamily, _ []string, restore string) error {
		if restore == "" {
			return nil
		}
		_, err := p.run(f, "restore", restore, "--noflush", "--wait=10")
		return err
	})
}

func (p legacyPart) each(take func(f legacyFamily, found []string, restore string) error) error {
	return p.saved(func(f legacyFamily, save string) error {
		found, restore := legacyFinds(p.NetworkTraces, save)
		return take(f, found, restore)
	})
}

func (p legacyPart) saves(take func(save string)) error {
	return p.saved(func(_ legacyFamily, save string) error {
		take(save)
		return nil
	})
}

func (p legacyPart) saved(take func(f legacyFamily, save string) error) error {
	for _, f := range legacyFamilies() {
		if !inUse(f.list) {
			continue
		}
		save, err := p.run(f, "save", "")
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf(
				"the kernel has tables of %s-legacy, and the node has no program to read them: install iptables there",
				f.program,
			)
		}
		if err != nil {
			return err
		}
		if err := take(f, save); err != nil {
			return err
		}
	}
	return nil
}

func (p legacyPart) run(f legacyFamily, verb, in string, args ...string) (string, error) {
	program, err := p.program(f.program + "-legacy-" + verb)
	if errors.Is(err, fs.ErrNotExist) {
		program, err = p.oldProgram(f.program, verb)
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(context.Background(), legacyTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stdin = "/", strings.NewReader(in)
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: p.Root}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s on the node: %w: %s", program, err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// program finds one in the node's root. A link in there leads from there.
func (p legacyPart) program(name string) (string, error) {
	for _, dir := range []string{"/usr/sbin", "/sbin", "/usr/bin", "/bin", "/usr/local/sbin"} {
		if _, err := os.Lstat(filepath.Join(p.Root, dir, name)); err == nil {
			return path.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, fs.ErrNotExist)
}

// oldProgram is an iptables of before 1.8, which knows no other tables and is called plainly.
func (p legacyPart) oldProgram(name, verb string) (string, error) {
	if _, err := p.program(name + "-nft-" + verb); err == nil {
		return "", fmt.Errorf("%s-legacy-%s: %w", name, verb, fs.ErrNotExist)
	}
	return p.program(name + "-" + verb)
}
