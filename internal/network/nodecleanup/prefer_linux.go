package nodecleanup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/network/podnetwork"
)

// preferring is the file before it has its name: no runtime loads what ends so.
const preferring = Preferred + podnetwork.StagedSuffix

// AheadError says that a file would be taken before replumb's.
type AheadError struct{ File string }

func (e *AheadError) Error() string {
	return fmt.Sprintf("%s/%s sorts before %s, and is what the node goes by: rename it", confDir, e.File, Preferred)
}

// NotReadyError says that a node has no configuration of a network that it could be switched to.
type NotReadyError struct{ Network string }

func (e *NotReadyError) Error() string {
	return fmt.Sprintf("no configuration of %s lies ready in %s", e.Network, confDir)
}

// Prefer gives new pods of the node the staged network, by an exact copy of its configuration,
// which differs by node. The file appears whole or not at all, even if power fails.
func (h Host) Prefer(n NetworkTraces) error {
	root, err := h.open()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	if err := ahead(root); err != nil {
		return err
	}
	body, err := staged(root, n)
	if err != nil {
		return err
	}
	if have, err := root.ReadFile(path.Join(within(confDir), Preferred)); err == nil && string(have) == string(body) {
		return nil
	}
	if err := writeWhole(root, body); err != nil {
		return fmt.Errorf("%s/%s: %w", confDir, Preferred, err)
	}
	return nil
}

// Prefers reports whether new pods get that network by Prefer. It fails if another file goes first.
func (h Host) Prefers(n NetworkTraces) (bool, error) {
	root, err := h.open()
	if err != nil {
		return false, err
	}
	defer func() { _ = root.Close() }()
	if err := ahead(root); err != nil {
		return false, err
	}
	confs, err := h.confs()
	if err != nil {
		return false, err
	}
	c := confs[Preferred]
	return c != nil && c.of(n), nil
}

func (h Host) Unprefer() error {
	root, err := h.open()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for _, name := range []string{Preferred, preferring, Preferred + putAside} {
		if err := root.Remove(path.Join(within(confDir), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncDir(root)
}

func ahead(root *os.Root) error {
	files, err := aheads(root)
	if err == nil && len(files) > 0 {
		return &AheadError{files[0]}
	}
	return err
}

// aheads are files before replumb's, of any content: a runtime loads nothing after one it cannot
// read.
func aheads(root *os.Root) ([]string, error) {
	entries, err := fs.ReadDir(root.FS(), within(confDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var out []string
	for _, e := range entries {
		if loaded(e.Name()) && e.Name() < Preferred {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func loaded(name string) bool { return slices.Contains(extensions(), path.Ext(name)) }

// staged is a network's staged configuration, which must be a list, as its future name says.
func staged(root *os.Root, n NetworkTraces) ([]byte, error) {
	entries, err := fs.ReadDir(root.FS(), within(confDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), podnetwork.StagedSuffix) || e.Name() == preferring {
			continue
		}
		body, err := root.ReadFile(path.Join(within(confDir), e.Name()))
		if err != nil {
			return nil, err
		}
		c := &conf{}
		// Half of one is not JSON: installers write their files in place.
		if json.Unmarshal(body, c) == nil && len(c.Plugins) > 0 && c.of(n) {
			return body, nil
		}
	}
	return nil, &NotReadyError{n.Name}
}

func writeWhole(root *os.Root, body []byte) error {
	at := path.Join(within(confDir), preferring)
	f, err := root.OpenFile(at, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := root.Rename(at, path.Join(within(confDir), Preferred)); err != nil {
		return err
	}
	return syncDir(root)
}

func syncDir(root *os.Root) error {
	d, err := root.Open(within(confDir))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
