package onnode

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/replumb/replumb/internal/kube/kubeadm"
)

// RunOnNode runs a program of the node, and returns what it has printed.
type RunOnNode func(ctx context.Context, command ...string) (string, error)

// InHost runs programs in the namespaces of the node's first process, by the node's own nsenter.
func InHost(root string) RunOnNode {
	return func(ctx context.Context, command ...string) (string, error) {
		enter := []string{"-t", "1", "-m", "-n", "-p", "-u", "--"}
		for _, path := range []string{"/usr/bin/nsenter", "/bin/nsenter", "/usr/local/bin/nsenter"} {
			if _, err := os.Lstat(filepath.Join(root, path)); err != nil {
				continue
			}
			c := exec.CommandContext(ctx, path, append(enter, command...)...) //nolint:gosec // as the callers write it
			if err := chroot(c, root); err != nil {
				return "", err
			}
			c.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
			out, err := c.CombinedOutput()
			text := strings.TrimSpace(string(out))
			if err != nil {
				return text, fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, text)
			}
			return text, nil
		}
		return "", &kubeadm.UnusualError{File: "/usr/bin/nsenter", Problem: "is not on this node, nor elsewhere in its PATH"}
	}
}

const (
	kubelet       = "kubelet"
	kubeletConfig = "/var/lib/kubelet/config.yaml"
	// restarting is in the folder of backups from before the file changes to when the kubelet runs
	// with it: a kubelet does not say which file it has read.
	restarting = "kubelet.restarting"
)

// LookAtKubelet refuses a kubelet that is not run as kubeadm's packages run it, and writes nothing.
func (h NodeFiles) LookAtKubelet(ctx context.Context, from, to []string) error {
	all, err := h.running(kubelet)
	if err != nil {
		return err
	}
	if len(all) != 1 {
		return &kubeadm.UnusualError{File: kubelet, Problem: fmt.Sprintf("runs %d times", len(all))}
	}
	flags := all[0].command[1:]
	config, named := flagOf(flags, "config")
	if !named || config != kubeletConfig {
		return &kubeadm.UnusualError{File: kubelet, Problem: "is not run with --config=" + kubeletConfig}
	}
	for _, wins := range []string{"cluster-dns", "config-dir"} {
		if _, named := flagOf(flags, wins); named {
			return &kubeadm.UnusualError{File: kubelet, Problem: "is run with --" + wins + ", which wins over " + kubeletConfig}
		}
	}
	text, err := h.read(kubeletConfig)
	if err != nil {
		return err
	}
	if _, err := kubeadm.SetClusterDNS(kubeletConfig, text, from, to); err != nil {
		return err
	}
	if _, err := kubeadm.Healthz(kubeletConfig, text); err != nil {
		return err
	}
	if state, err := h.Run(ctx, "systemctl", "is-active", kubelet); err != nil {
		return &kubeadm.UnusualError{File: kubelet, Problem: "is not a unit of systemd that is active: " + strings.TrimSpace(state+" "+err.Error())}
	}
	return nil
}

// flagOf is the last value of a flag, which counts.
func flagOf(args []string, name string) (value string, named bool) {
	for i, arg := range args {
		if arg == "--"+name && i+1 < len(args) {
			value, named = args[i+1], true
		}
		if v, ok := strings.CutPrefix(arg, "--"+name+"="); ok {
			value, named = v, true
		}
	}
	return value, named
}

// SetClusterDNS changes the kubelet's configuration and restarts it. A kubelet that is not healthy
// in time gets its former file back, and is restarted again. Cut off from
// outside it goes on.
func (h NodeFiles) SetClusterDNS(ctx context.Context, from, to []string) error {
	ctx = context.WithoutCancel(ctx)
	if err := h.LookAtKubelet(ctx, from, to); err != nil {
		return err
	}
	was, err := h.read(kubeletConfig)
	if err != nil {
		return err
	}
	is, err := kubeadm.SetClusterDNS(kubeletConfig, was, from, to)
	if err != nil {
		return err
	}
	pending := filepath.Join(h.backups(), restarting)
	if string(was) == string(is) && !h.exists(pending) {
		return nil
	}
	if err := h.keep("kubelet-config.yaml", was); err != nil {
		return err
	}
	if err := h.keep(restarting, nil); err != nil {
		return err
	}
	if err := h.replace(kubeletConfig, is); err != nil {
		return err
	}
	if why := h.restartKubelet(ctx, is); why != nil {
		return undone(why, h.unsetClusterDNS(ctx, from, to), kubeletConfig)
	}
	return os.Remove(h.path(pending))
}

func (h NodeFiles) unsetClusterDNS(ctx context.Context, from, to []string) error {
	now, err := h.read(kubeletConfig)
	if err != nil {
		return err
	}
	was, err := kubeadm.SetClusterDNS(kubeletConfig, now, to, from)
	if err != nil {
		return err
	}
	if err := h.replace(kubeletConfig, was); err != nil {
		return err
	}
	return h.restartKubelet(ctx, was)
}

// restartKubelet waits until another process than before is healthy, by its configuration.
func (h NodeFiles) restartKubelet(ctx context.Context, config []byte) error {
	healthz, err := kubeadm.Healthz(kubeletConfig, config)
	if err != nil {
		return err
	}
	before, err := h.running(kubelet)
	if err != nil {
		return err
	}
	if _, err := h.Run(ctx, "systemctl", "restart", kubelet); err != nil {
		return err
	}
	return h.until(ctx, func(ctx context.Context) error {
		now, err := h.running(kubelet)
		if err != nil {
			return err
		}
		if len(now) != 1 || len(before) == 1 && now[0].pid == before[0].pid {
			return errors.New("the kubelet has not started again")
		}
		return getOK(ctx, healthz)
	})
}
