package machine

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// handler is the machine's control interface, served on a unix socket that only its owner can open. A machine that does not
// forward has no balancer.
func handler(s *supervisor, b *balancer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) {
		name, _ := os.Hostname()
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(Info{Name: name, PID: os.Getpid(), Programs: s.statuses()})
	})
	mux.HandleFunc("PUT /programs", func(w http.ResponseWriter, r *http.Request) {
		var p Program
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if err := s.set(p); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("DELETE /programs/{name}", func(_ http.ResponseWriter, r *http.Request) {
		s.stop(r.PathValue("name"))
	})
	mux.HandleFunc("PUT /forward", func(w http.ResponseWriter, r *http.Request) {
		var to []string
		if err := json.NewDecoder(r.Body).Decode(&to); err != nil || b == nil {
			http.Error(w, "this machine cannot forward there", http.StatusBadRequest)
			return
		}
		b.lead(to)
	})
	return mux
}

// Handle is a machine seen from the host.
type Handle struct {
	Spec Spec
	http *http.Client
}

// Open returns the handle of a machine that may or may not be running.
func Open(spec Spec) *Handle {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", spec.Socket())
	}
	return &Handle{Spec: spec, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Start starts a machine and returns when it takes orders. The listener, which may be nil, is handed over to it for
// Spec.Forward.
func Start(ctx context.Context, spec Spec, listener *os.File) (*Handle, error) {
	if err := os.MkdirAll(spec.LogDir(), 0o755); err != nil {
		return nil, err
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	specFile := filepath.Join(spec.Root, "machine.json")
	if err := os.WriteFile(specFile, data, 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(spec.LogDir(), "machine.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()

	// Not CommandContext: a machine outlives the process that starts it.
	cmd := exec.Command("/proc/self/exe", specFile) //nolint:noctx // see above
	cmd.Args[0] = argv0
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: cloneFlags}
	if spec.OwnProcesses {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWPID
	}
	if listener != nil {
		cmd.ExtraFiles = []*os.File{listener}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting machine %s: %w", spec.Name, err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }() // reaps it if it ends before we do

	h := Open(spec)
	if err := h.waitUp(ctx, exited); err != nil {
		text, _ := os.ReadFile(log.Name())
		return nil, fmt.Errorf("starting machine %s: %w: %s", spec.Name, err, bytes.TrimSpace(text))
	}
	return h, nil
}

func (h *Handle) waitUp(ctx context.Context, exited <-chan error) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := h.Info(ctx); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case err := <-exited:
			return err
		case <-tick.C:
		}
	}
}

// Info asks the machine what it is running.
func (h *Handle) Info(ctx context.Context) (Info, error) {
	var info Info
	body, err := h.do(ctx, http.MethodGet, "/", nil)
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(body, &info); err != nil || info.PID != 1 {
		return info, err
	}
	info.OwnProcesses = true
	info.PID, err = h.listener(ctx)
	return info, err
}

// listener is the process that listens at the machine's control socket, by its number on the host.
func (h *Handle) listener(ctx context.Context) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", h.Spec.Socket())
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var asked error
	err = raw.Control(func(fd uintptr) { peer, asked = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err := errors.Join(err, asked); err != nil {
		return 0, err
	}
	return int(peer.Pid), nil
}

// Run has the machine run p for good, in place of the program of the same name if there is one: that is told to end,
// and Run returns when it has ended and p is being started. The machine goes through with it even if ctx ends.
func (h *Handle) Run(ctx context.Context, p Program) error {
	data, err := json.Marshal(p)
	if err != nil {
		return err
	}
	if _, err := h.do(ctx, http.MethodPut, "/programs", data); err != nil {
		return fmt.Errorf("starting %s on %s: %w", p.Name, h.Spec.Name, err)
	}
	return nil
}

// Stop has the machine end the named program and returns when it has ended.
func (h *Handle) Stop(ctx context.Context, name string) error {
	if _, err := h.do(ctx, http.MethodDelete, "/programs/"+name, nil); err != nil {
		return fmt.Errorf("stopping %s on %s: %w", name, h.Spec.Name, err)
	}
	return nil
}

// Forward has the machine lead further connections to these addresses, in place of those in Spec.Forward.
func (h *Handle) Forward(ctx context.Context, to []string) error {
	data, err := json.Marshal(to)
	if err != nil {
		return err
	}
	if _, err := h.do(ctx, http.MethodPut, "/forward", data); err != nil {
		return fmt.Errorf("forwarding of %s: %w", h.Spec.Name, err)
	}
	return nil
}

func (h *Handle) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://machine"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := h.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, bytes.TrimSpace(text))
	}
	return text, err
}

// Command prepares argv to be run on the machine, as a user logged in there would.
func (h *Handle) Command(ctx context.Context, argv ...string) (*exec.Cmd, error) {
	info, err := h.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("machine %s does not answer: %w", h.Spec.Name, err)
	}
	enter := []string{"--target", fmt.Sprint(info.PID), "--mount", "--uts", "--net", "--wd=/"}
	if info.OwnProcesses {
		enter = append(enter, "--pid")
	}
	enter = append(enter, "--")
	return exec.CommandContext(ctx, "nsenter", append(enter, argv...)...), nil
}

// Path is where the machine's file path is seen from the host while the machine runs.
func (h *Handle) Path(ctx context.Context, path string) (string, error) {
	info, err := h.Info(ctx)
	if err != nil {
		return "", fmt.Errorf("machine %s does not answer: %w", h.Spec.Name, err)
	}
	return filepath.Join("/proc", fmt.Sprint(info.PID), "root", path), nil
}

// ReadFile reads a file on the machine.
func (h *Handle) ReadFile(ctx context.Context, path string) ([]byte, error) {
	host, err := h.Path(ctx, path)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(host)
	if err != nil {
		return nil, fmt.Errorf("reading %s on %s: %w", path, h.Spec.Name, err)
	}
	return data, nil
}

// Program returns the program of that name the machine runs.
func (h *Handle) Program(ctx context.Context, name string) (Program, error) {
	info, err := h.Info(ctx)
	if err != nil {
		return Program{}, fmt.Errorf("machine %s does not answer: %w", h.Spec.Name, err)
	}
	for _, p := range info.Programs {
		if p.Name == name {
			return p.Program, nil
		}
	}
	return Program{}, fmt.Errorf("machine %s runs no %s", h.Spec.Name, name)
}

// WriteFile writes a file on the machine, readable by its owner only. It takes the place of what is there: to write through
// a symbolic link, which /etc/resolv.conf often is, would be to write on the host.
func (h *Handle) WriteFile(ctx context.Context, path string, data []byte) error {
	host, err := h.Path(ctx, path)
	if err != nil {
		return err
	}
	dir, name := filepath.Split(host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	written := filepath.Join(dir, "."+name+".new")
	if err := os.WriteFile(written, data, 0o600); err != nil {
		return err
	}
	return os.Rename(written, host)
}
