package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/replumb/replumb/lab/cgroup"
)

// argv0 is the name by which a binary that uses this package is told that it is to be a machine.
const argv0 = "replumb-lab-machine"

// listenerFD is the descriptor of the inherited listener, the first after stdin, stdout and stderr.
const listenerFD = 3

// RunIfAsked makes this process a machine and does not return, if Start started it as one. Every main function (and
// TestMain) of a binary that starts labs calls it first.
func RunIfAsked() {
	if filepath.Base(os.Args[0]) != argv0 {
		return
	}
	err := run(os.Args[1])
	fmt.Fprintln(os.Stderr, "machine:", err)
	os.Exit(1)
}

func run(specFile string) error {
	var spec Spec
	data, err := os.ReadFile(specFile)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, &spec); err != nil {
		return err
	}
	tree, err := cgroup.Open()
	if err != nil {
		return err
	}
	// First of all, so that nothing this process does can outlive the lab.
	if err := tree.Join(spec.CGroup, os.Getpid()); err != nil {
		return err
	}
	if err := spec.setUp(); err != nil {
		return err
	}
	forward, err := spec.Forward.start()
	if err != nil {
		return err
	}
	var listen net.ListenConfig
	socket, err := listen.Listen(context.Background(), "unix", spec.Socket())
	if err != nil {
		return err
	}
	return http.Serve(socket, handler(newSupervisor(spec.LogDir()), forward))
}

// setUp turns the fresh namespaces into something that looks like a computer of its own.
func (s Spec) setUp() error {
	if err := unix.Sethostname([]byte(s.Name)); err != nil {
		return fmt.Errorf("setting host name: %w", err)
	}
	if err := s.setUpMounts(); err != nil {
		return err
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return s.setSysctls()
}

func (s Spec) setSysctls() error {
	for name, value := range s.Sysctls {
		if !strings.HasPrefix(name, "net.") {
			return fmt.Errorf("sysctl %s is not the network namespace's own", name)
		}
		path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
		err := os.WriteFile(path, []byte(value), 0o644)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // bridge filtering is there only with br_netfilter
			return fmt.Errorf("sysctl %s: %w", name, err)
		}
	}
	return nil
}

// cloneFlags are the namespaces a machine has of its own.
const cloneFlags = syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS
