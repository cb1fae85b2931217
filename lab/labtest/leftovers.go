// Package labtest looks for traces of labs on the machine they run on.
package labtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Leftovers lists what there is of the lab of that name on this machine: processes, mounts, control groups, sockets
// and files.
func Leftovers(t *testing.T, name string) []string {
	t.Helper()
	found := append(processesOf(t, name), filesOf(name)...)
	for _, table := range []string{"/proc/self/mountinfo", "/proc/net/unix"} {
		for _, line := range lines(t, table) {
			if strings.Contains(line, "/replumb-lab/"+name+"/") {
				found = append(found, table+": "+line)
			}
		}
	}
	return found
}

// processesOf lists processes that are in the lab's control group, or were started from its files.
func processesOf(t *testing.T, name string) []string {
	t.Helper()
	var found []string
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, proc := range procs {
		group, _ := os.ReadFile(proc + "/cgroup")
		command, _ := os.ReadFile(proc + "/cmdline")
		// The start of `replumb-lab up --name NAME` itself is no leftover; a machine is told its spec by path.
		if strings.Contains(string(group), "/replumb-lab-"+name+"/") || strings.Contains(string(command), "/replumb-lab/"+name+"/") {
			found = append(found, fmt.Sprintf("process %s: %q", filepath.Base(proc), command))
		}
	}
	return found
}

func filesOf(name string) []string {
	var found []string
	for _, pattern := range []string{"/var/lib/replumb-lab/" + name, "/sys/fs/cgroup/replumb-lab-" + name, "/sys/fs/cgroup/*/replumb-lab-" + name} {
		matches, _ := filepath.Glob(pattern)
		found = append(found, matches...)
	}
	return found
}

// HostState is what a lab must never change on the machine it runs on.
func HostState(t *testing.T) []string {
	t.Helper()
	var state []string
	for _, file := range []string{
		"/proc/self/mounts", "/proc/sys/kernel/panic", "/proc/sys/kernel/panic_on_oops", "/proc/sys/vm/overcommit_memory",
		"/proc/sys/vm/panic_on_oom", "/proc/sys/kernel/keys/root_maxkeys", "/proc/sys/kernel/timer_migration",
		"/proc/sys/kernel/unprivileged_bpf_disabled", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sys/net/netfilter/nf_conntrack_max",
	} {
		for _, line := range lines(t, file) {
			state = append(state, file+": "+line)
		}
	}
	for _, dir := range []string{"/sys/class/net", "/etc", "/opt", "/run", "/run/netns", "/var/lib", "/var/log"} {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if e.Name() != "replumb-lab" { // other labs may come and go
				state = append(state, filepath.Join(dir, e.Name()))
			}
		}
	}
	slices.Sort(state)
	return state
}

// lines reads a file that may not exist on every kernel.
func lines(t *testing.T, file string) []string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// RequireNothingLeft fails the test if anything of the lab is there.
func RequireNothingLeft(t *testing.T, name string) {
	t.Helper()
	for _, what := range Leftovers(t, name) {
		t.Errorf("left behind by lab %s: %s", name, what)
	}
}

// RequireUnchanged fails the test if the host is not as it was.
func RequireUnchanged(t *testing.T, before []string) {
	t.Helper()
	after := HostState(t)
	for _, line := range after {
		if !slices.Contains(before, line) {
			t.Errorf("new on the host: %s", line)
		}
	}
	for _, line := range before {
		if !slices.Contains(after, line) {
			t.Errorf("gone from the host: %s", line)
		}
	}
}
