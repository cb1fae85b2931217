// Package etcdtest runs members of an etcd that are real processes, with certificates for
// everything.
package etcdtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// endWithin is how long a member may take to end once it was asked to. Then it is killed.
const endWithin = 20 * time.Second

// Member is one of an etcd: where it is, and whether it runs.
type Member struct {
	// Name it has, and the folder with its data.
	Name, Dir string
	// Peer and Client are its URLs for the others and for clients.
	Peer, Client string
	// Cert is what it shows to both.
	Cert Files
	// InitialCluster is what it begins with, as long as it has no data: --initial-cluster.
	InitialCluster string

	cmd   *exec.Cmd
	ended chan struct{}
}

// Binary is the etcd of those components that API tests run with.
func Binary() (string, error) {
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		return "", errors.New(
			"KUBEBUILDER_ASSETS does not name a directory with etcd and kube-apiserver\nhint: run the tests with: make test",
		)
	}
	return filepath.Join(assets, "etcd"), nil
}

// Start runs a member, with flags beside its own. It ends with this process: the signal is tied to
// the thread that started it, which is kept for that.
func (m *Member) Start(flags ...string) error {
	binary, err := Binary()
	if err != nil {
		return err
	}
	log, err := os.OpenFile(m.log(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	cmd := exec.Command(binary, append(m.flags(), flags...)...) //nolint:noctx // it ends when it is asked to, and with this process
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	ended, started := make(chan struct{}), make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		defer func() { _ = log.Close() }()
		started <- cmd.Start()
		_ = cmd.Wait()
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("etcd member %s: %w", m.Name, err)
	}
	m.cmd, m.ended = cmd, ended
	return nil
}

func (m *Member) flags() []string {
	return []string{
		"--name=" + m.Name,
		"--data-dir=" + m.Dir,
		"--initial-cluster=" + m.InitialCluster,
		"--initial-cluster-token=test",
		"--listen-peer-urls=" + m.Peer,
		"--initial-advertise-peer-urls=" + m.Peer,
		"--listen-client-urls=" + m.Client,
		"--advertise-client-urls=" + m.Client,
		"--client-cert-auth",
		"--trusted-ca-file=" + m.Cert.CA,
		"--cert-file=" + m.Cert.Cert,
		"--key-file=" + m.Cert.Key,
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + m.Cert.CA,
		"--peer-cert-file=" + m.Cert.Cert,
		"--peer-key-file=" + m.Cert.Key,
		"--unsafe-no-fsync", // the disk is that of others
	}
}

func (m *Member) log() string { return m.Dir + ".log" }

// Tail is the last of what it said.
func (m *Member) Tail() string {
	body, _ := os.ReadFile(m.log())
	return string(body[max(0, len(body)-3000):])
}

// Kill ends it as a power cut would.
func (m *Member) Kill() { m.end(syscall.SIGKILL) }

// Stop ends it as kubelet would.
func (m *Member) Stop() { m.end(syscall.SIGTERM) }

func (m *Member) end(signal syscall.Signal) {
	if m.cmd == nil {
		return
	}
	_ = m.cmd.Process.Signal(signal)
	select {
	case <-m.ended:
	case <-time.After(endWithin):
		_ = m.cmd.Process.Kill()
		<-m.ended
	}
}

// Ended is closed when its process has ended; nil, if it never started.
func (m *Member) Ended() <-chan struct{} { return m.ended }

// AwaitEnd waits until it has ended by itself, as one does that was removed.
func (m *Member) AwaitEnd() error {
	select {
	case <-m.ended:
		return nil
	case <-time.After(endWithin):
		return fmt.Errorf("etcd member %s still runs", m.Name)
	}
}
