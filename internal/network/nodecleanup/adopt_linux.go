package nodecleanup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/replumb/replumb/internal/network/podnetwork"
)

// Adopt makes a network's own file the node's, and removes what Prefer and a staged DaemonSet have
// left. It fails if the node would go by another network then.
func (h Host) Adopt(n NetworkTraces) error {
	confs, err := h.confs()
	if err != nil {
		return err
	}
	delete(confs, Preferred)
	names := slices.Sorted(maps.Keys(confs))
	switch {
	case len(names) == 0:
		return fmt.Errorf("%s holds no configuration of %s", confDir, n.Name)
	case !confs[names[0]].of(n):
		return fmt.Errorf("%s/%s comes first, and is not of %s: remove it", confDir, names[0], n.Name)
	}
	if err := h.Unprefer(); err != nil {
		return err
	}
	return h.unstage(n)
}

func (h Host) unstage(n NetworkTraces) error {
	known, err := h.known()
	if err != nil {
		return err
	}
	root, err := h.open()
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for name, c := range known {
		if !strings.HasSuffix(name, podnetwork.StagedSuffix) || !c.of(n) {
			continue
		}
		if err := root.Remove(path.Join(within(confDir), name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return syncDir(root)
}
