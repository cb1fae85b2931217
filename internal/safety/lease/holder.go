package lease

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/replumb/replumb/internal/engine/fault"
)

// Holder is who works on a migration.
type Holder struct {
	User string `json:"user,omitempty"`
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
	// Boot is the boot ID: equal for holders under the same running kernel.
	Boot string `json:"boot,omitempty"`
	// Space is the PID namespace. In another one the same PID is another process.
	Space     string    `json:"space,omitempty"`
	Migration string    `json:"migration,omitempty"`
	Command   string    `json:"command,omitempty"`
	Since     time.Time `json:"since"`
	// Identity is the Lease's holderIdentity, all that is known of foreign holders.
	Identity string `json:"-"`
}

// Self is this process. Without the system's data, others wait for the Lease to expire.
func Self(migration, command string) Holder {
	host, _ := os.Hostname()
	space, _ := os.Readlink("/proc/self/ns/pid")
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return Holder{
		User: userName(), Host: host, PID: os.Getpid(), Boot: strings.TrimSpace(string(boot)), Space: space,
		Migration: migration, Command: command,
	}
}

func userName() string {
	if u, err := user.Current(); err == nil {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// String is the holder in words: root@host (pid 123, replumb apply).
func (h Holder) String() string {
	if h.PID == 0 {
		if h.Identity == "" {
			return "a holder without a name"
		}
		return h.Identity
	}
	return fmt.Sprintf("%s@%s (pid %d, %s)", h.User, h.Host, h.PID, h.Command)
}

// gone reports whether h has ended, as only its host can tell. A reused PID looks alive; then the
// Lease has to expire.
func (h Holder) gone(self Holder) bool {
	if h.PID == 0 || h.Boot == "" || h.Space == "" || h.Host != self.Host || h.Boot != self.Boot || h.Space != self.Space {
		return false
	}
	return !alive(h.PID)
}

// alive is false only for a process that does not exist or is a zombie.
func alive(pid int) bool {
	p, err := os.FindProcess(pid)
	if err != nil {
		return true
	}
	defer func() { _ = p.Release() }()
	if err := p.Signal(nullSignal); errors.Is(err, os.ErrProcessDone) {
		return false
	}
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return true // not shown to this user; the signal found it
	}
	// The state follows the command's name in parentheses (proc_pid_stat(5)).
	_, after, _ := strings.Cut(string(stat[strings.LastIndexByte(string(stat), ')')+1:]), " ")
	return !strings.HasPrefix(after, "Z") && !strings.HasPrefix(after, "X")
}

func holderOf(lease *coordinationv1.Lease) Holder {
	var h Holder
	if err := json.Unmarshal([]byte(lease.Annotations[annotationHolder]), &h); err != nil {
		h = Holder{} // not written by replumb, or damaged: what remains is its identity
	}
	if lease.Spec.HolderIdentity != nil {
		h.Identity = *lease.Spec.HolderIdentity
	}
	if h.Since.IsZero() && lease.Spec.AcquireTime != nil {
		h.Since = lease.Spec.AcquireTime.Time
	}
	return h
}

// HeldError says that someone else works on a migration of this cluster.
type HeldError struct {
	Holder Holder

	now time.Time
}

func (e *HeldError) Error() string {
	var text string
	if e.Holder.Migration == "" {
		text = fmt.Sprintf("lease %s/%s is held by %s", Namespace, Name, e.Holder)
	} else {
		text = fmt.Sprintf("migration %s is being worked on by %s", e.Holder.Migration, e.Holder)
	}
	if e.Holder.Since.IsZero() {
		return text
	}
	format := time.TimeOnly
	since := e.Holder.Since.Local()
	if now := e.now.Local(); since.YearDay() != now.YearDay() || since.Year() != now.Year() {
		format = time.DateTime
	}
	return text + " since " + since.Format(format)
}

func (e *HeldError) Advice() string {
	if e.Holder.Migration != "" {
		return "wait until it is done, or ask it to stop: replumb pause " + e.Holder.Migration
	}
	return "wait until it is done; if that process is gone: kubectl delete lease -n kube-system replumb"
}

func (*HeldError) ExitCode() int { return fault.ExitLocked }

// LostError says that the lock was lost while it was held: others may be at work.
type LostError struct {
	Why error
}

func (e *LostError) Error() string {
	return fmt.Sprintf("lost the lock (lease %s/%s): %v", Namespace, Name, e.Why)
}

func (e *LostError) Unwrap() error { return e.Why }
func (*LostError) Revokes()        {}
