package machine

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/cgroup"
)

// Folders that programs write to. The first are replaced by the machine's own, empty at first; for the others what the
// host has shows through, and only what is written is the machine's own.
func ownDirs() []string     { return []string{"/run", "/var/lib", "/var/log"} }
func layeredDirs() []string { return []string{"/etc", "/opt"} }

// hostKnobs are kernel settings that kubelet and Cilium's agent insist on and that are not the namespace's own. They are given as plain
// files, kubelet's with the values it wants to see, so that running a lab never changes the machine it runs on. Cilium's second one could not even
// be set back: once it is 1, it stays so until the machine is restarted.
// https://github.com/kubernetes/kubernetes/blob/v1.36.3/pkg/kubelet/cm/container_manager_linux.go (setupKernelTunables)
// https://github.com/cilium/cilium/blob/v1.20.2/pkg/datapath/loader/base.go (Reinitialize)
func hostKnobs() map[string]string {
	return map[string]string{
		"/proc/sys/vm/overcommit_memory":      "1",
		"/proc/sys/vm/panic_on_oom":           "0",
		"/proc/sys/kernel/panic":              "10",
		"/proc/sys/kernel/panic_on_oops":      "1",
		"/proc/sys/kernel/keys/root_maxkeys":  "1000000",
		"/proc/sys/kernel/keys/root_maxbytes": "25000000",

		"/proc/sys/kernel/timer_migration":           "1",
		"/proc/sys/kernel/unprivileged_bpf_disabled": "2",
	}
}

func (s Spec) setUpMounts() error {
	// Nothing mounted from here on may reach the host; below that, kubelet needs mounts to propagate into pods.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("making mounts shared inside the machine: %w", err)
	}
	if s.OwnProcesses {
		if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
			return fmt.Errorf("mounting the machine's own processes: %w", err)
		}
	}
	for _, dir := range ownDirs() {
		if err := s.replace(dir); err != nil {
			return err
		}
	}
	for _, dir := range append(layeredDirs(), s.Layers...) {
		if err := s.layer(dir); err != nil {
			return err
		}
	}
	if err := s.mountBPF(); err != nil {
		return err
	}
	return s.coverKnobs()
}

// mountBPF gives the machine what programs of BPF are kept in and attached to, as systemd does. What is pinned there is not seen on other
// machines, and goes with this one.
func (s Spec) mountBPF() error {
	if s.BPF == "" {
		return nil
	}
	if err := unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "mode=700"); err != nil {
		return fmt.Errorf("mounting the file system of BPF: %w", err)
	}
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	group, err := tree.Unified(filepath.Dir(s.CGroup))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.BPF, 0o755); err != nil {
		return err
	}
	return bind(group, s.BPF)
}

// replace mounts the machine's own folder over dir, keeping what is in Keep reachable.
func (s Spec) replace(dir string) error {
	own := filepath.Join(s.Root, dir)
	if err := os.MkdirAll(own, 0o755); err != nil {
		return err
	}
	if err := bind(own, own); err != nil { // a mount point, so that what is mounted inside travels with it
		return err
	}
	for _, keep := range s.Keep {
		if !strings.HasPrefix(keep, dir+"/") {
			continue
		}
		target := filepath.Join(s.Root, keep)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(keep, target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("keeping %s: %w", keep, err)
		}
	}
	return bind(own, dir)
}

// layer mounts an overlay over dir whose changes go to the machine's own folder.
func (s Spec) layer(dir string) error {
	upper := filepath.Join(s.Root, dir)
	work := filepath.Join(s.Root, "work", dir)
	for _, d := range []string{upper, work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	data := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", dir, upper, work)
	if err := unix.Mount("overlay", dir, "overlay", 0, data); err != nil {
		return fmt.Errorf("mounting an overlay over %s: %w", dir, err)
	}
	return nil
}

func (s Spec) coverKnobs() error {
	for path, value := range hostKnobs() {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		own := filepath.Join(s.Root, "knobs", filepath.Base(path))
		if err := os.MkdirAll(filepath.Dir(own), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(own, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := bind(own, path); err != nil {
			return err
		}
	}
	return nil
}

func bind(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s on %s: %w", from, to, err)
	}
	return nil
}
