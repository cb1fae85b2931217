// Package machine is one "computer" of a lab: a process with network, mount and host name of its own that looks after
// the programs running on it, as a machine's init does.
//
// The namespaces have no name and no bind mount anywhere. They live exactly as long as the processes in them, so
// when the processes of a lab are killed - by whatever, in whatever state - the kernel takes back its links,
// addresses, firewall rules and mounts, and there is nothing to clean up after.
package machine

import (
	"fmt"
	"path/filepath"
	"time"
)

// Spec is what a machine is started with.
type Spec struct {
	Name string `json:"name"` // host name
	// Root is the folder that holds the machine's own files: the content of /run, /var/lib, /var/log and what it
	// writes to /etc and /opt.
	Root string `json:"root"`
	// CGroup is the group the machine and its programs live in. It must exist.
	CGroup string `json:"cgroup"`
	// Keep lists folders of the host that stay visible at their path where they would otherwise be hidden.
	Keep []string `json:"keep,omitempty"`
	// Layers are further folders where what the host has shows through, and what is written is the machine's own.
	Layers []string `json:"layers,omitempty"`
	// OwnProcesses has programs of the machine see no processes but its own, the machine's first one with number 1.
	OwnProcesses bool `json:"ownProcesses,omitempty"`
	// Sysctls are set inside the machine's network namespace. Names start with "net.".
	Sysctls map[string]string `json:"sysctls,omitempty"`
	// Forward leads connections into the machine's network.
	Forward Forward `json:"forward,omitzero"`
	// BPF has the machine's own file system of BPF mounted at /sys/fs/bpf, and what is above CGroup in the hierarchy of version 2 at this path:
	// programs attached to it see what runs on this machine, and nothing else. Empty, if nothing there uses BPF.
	BPF string `json:"bpf,omitempty"`
}

// Forward leads each connection to one of several addresses.
type Forward struct {
	// To are the addresses in the machine's network to which connections on the inherited listener go. Of several, those
	// are preferred that answer GET /readyz over TLS with 200, in turn; the others are tried when none does.
	To []string `json:"to,omitempty"`
	// Listen is an address in the machine's network on which connections are accepted and led there as well, if any.
	Listen string `json:"listen,omitempty"`
}

// Socket is the path of the machine's control socket on the host.
func (s Spec) Socket() string { return SocketIn(s.Root) }

// SocketIn is the path of the control socket of the machine whose files are under root.
func SocketIn(root string) string { return filepath.Join(root, "control.sock") }

// LogDir is the folder, on the host, of the logs of the machine's programs.
func (s Spec) LogDir() string { return filepath.Join(s.Root, "log") }

// Program is one program a machine runs and restarts whenever it ends.
type Program struct {
	Name string   `json:"name"`
	Argv []string `json:"argv"`
	Env  []string `json:"env,omitempty"` // added to a minimal environment
	// Grace is how long it may take to end after SIGTERM before it is killed; 5 s if zero.
	Grace time.Duration `json:"grace,omitempty"`
}

func (p Program) validate() error {
	if p.Name == "" || len(p.Argv) == 0 {
		return fmt.Errorf("program %q has no name or no command line", p.Name)
	}
	return nil
}

// Status is what a program is doing.
type Status struct {
	Program
	PID      int       `json:"pid,omitempty"` // 0 while it waits to be restarted
	Restarts int       `json:"restarts"`
	Started  time.Time `json:"started,omitzero"`
	LastExit string    `json:"lastExit,omitempty"`
}

// Info is what a machine says of itself.
type Info struct {
	Name string `json:"name"`
	PID  int    `json:"pid"`
	// OwnProcesses says that those of its programs are numbers of its own.
	OwnProcesses bool     `json:"-"`
	Programs     []Status `json:"programs"`
}
