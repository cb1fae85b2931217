//go:build apiserver

package etcd

import (
	"crypto/tls"
	"fmt"
	"hash/fnv"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/pki"
)

// ensemble is members of an etcd that are real processes, with certificates for everything.
type ensemble struct {
	t      *testing.T
	binary string
	dir    string
	ca     *pki.CA
	files  Files
	flags  []string
	subnet net.IP
	label  string
	last   atomic.Int32
	mu     sync.Mutex
	all    map[string]*process
}

// process is one member: where it is, and whether it runs.
type process struct {
	name, dir      string
	peer, client   string
	cert           Files
	cmd            *exec.Cmd
	ended          chan struct{}
	initialCluster string
}

// newEnsemble makes certificates and starts so many members: m1, m2 and so on. All of them end with the test.
func newEnsemble(t *testing.T, members int, flags ...string) *ensemble {
	t.Helper()
	assets := os.Getenv("KUBEBUILDER_ASSETS")
	if assets == "" {
		t.Fatal("KUBEBUILDER_ASSETS does not name a directory with etcd and kube-apiserver\nhint: run the tests with: make test")
	}
	e := &ensemble{t: t, binary: filepath.Join(assets, "etcd"), dir: t.TempDir(), flags: flags, all: map[string]*process{}}
	var err error
	if e.ca, err = pki.NewCA("etcd-ca"); err != nil {
		t.Fatal(err)
	}
	e.files = e.certify("client", nil)
	// Members have addresses of their own, as on machines of their own, and tests that run at the same time others than these.
	h := fnv.New32()
	_, _ = fmt.Fprint(h, t.Name(), os.Getpid())
	e.subnet = net.IPv4(127, byte(64+h.Sum32()>>8&0x3f), byte(h.Sum32()), 0).To4()
	t.Cleanup(func() {
		for name, p := range e.all {
			e.kill(name)
			if t.Failed() {
				t.Logf("%s:\n%s", name, p.tail())
			}
		}
	})
	var initial []string
	for i := range members {
		p := e.place(fmt.Sprintf("m%d", i+1))
		initial = append(initial, p.name+"="+p.peer)
	}
	for _, p := range e.all {
		p.initialCluster = strings.Join(initial, ",")
		e.start(p.name, "--initial-cluster-state=new")
	}
	return e
}

// place gives a member an address, ports, a certificate and a data folder, without starting it.
func (e *ensemble) place(name string) *process {
	e.t.Helper()
	at := net.IPv4(e.subnet[0], e.subnet[1], e.subnet[2], byte(e.last.Add(1)))
	p := &process{
		name: name, dir: filepath.Join(e.dir, name), cert: e.certify(fmt.Sprintf("%s-%s", name, at), at),
		peer: "https://" + e.free(at), client: "https://" + e.free(at),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[name] = p
	return p
}

func (e *ensemble) free(at net.IP) string {
	l, err := (&net.ListenConfig{}).Listen(e.t.Context(), "tcp", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (e *ensemble) certify(name string, at net.IP) Files {
	e.t.Helper()
	request := pki.Request{CommonName: name}
	if at != nil {
		// Members refuse a peer that comes from an address its certificate does not name, and on one machine all come from here.
		request.Addresses = []net.IP{at, net.IPv4(127, 0, 0, 1)}
	}
	pair, err := e.ca.Issue(request)
	if err != nil {
		e.t.Fatal(err)
	}
	f := Files{CA: filepath.Join(e.dir, "ca.crt"), Cert: filepath.Join(e.dir, name+".crt"), Key: filepath.Join(e.dir, name+".key")}
	for file, body := range map[string][]byte{f.CA: e.ca.Cert, f.Cert: pair.Cert, f.Key: pair.Key} {
		if err := os.WriteFile(file, body, 0o600); err != nil {
			e.t.Fatal(err)
		}
	}
	return f
}

// start runs a member. It ends with this process: the signal is tied to the thread that started it, which is kept for that.
func (e *ensemble) start(name string, flags ...string) {
	e.t.Helper()
	p := e.all[name]
	log, err := os.OpenFile(p.dir+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		e.t.Fatal(err)
	}
	p.cmd = exec.Command(e.binary, append(append(p.flags(), flags...), e.flags...)...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	p.ended = make(chan struct{})
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(p.ended)
		defer func() { _ = log.Close() }()
		started <- p.cmd.Start()
		_ = p.cmd.Wait()
	}()
	if err := <-started; err != nil {
		e.t.Fatal(err)
	}
}

func (p *process) flags() []string {
	return []string{
		"--name=" + p.name,
		"--data-dir=" + p.dir,
		"--initial-cluster=" + p.initialCluster,
		"--initial-cluster-token=test",
		"--listen-peer-urls=" + p.peer,
		"--initial-advertise-peer-urls=" + p.peer,
		"--listen-client-urls=" + p.client,
		"--advertise-client-urls=" + p.client,
		"--client-cert-auth",
		"--trusted-ca-file=" + p.cert.CA,
		"--cert-file=" + p.cert.Cert,
		"--key-file=" + p.cert.Key,
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + p.cert.CA,
		"--peer-cert-file=" + p.cert.Cert,
		"--peer-key-file=" + p.cert.Key,
		"--unsafe-no-fsync", // the disk is that of others
	}
}

// tail is the last of what a member said.
func (p *process) tail() string {
	body, _ := os.ReadFile(p.dir + ".log")
	return string(body[max(0, len(body)-3000):])
}

// kill ends a member as a power cut would.
func (e *ensemble) kill(name string) { e.end(name, syscall.SIGKILL) }

// stop ends a member as kubelet would.
func (e *ensemble) stop(name string) { e.end(name, syscall.SIGTERM) }

func (e *ensemble) end(name string, signal syscall.Signal) {
	p := e.all[name]
	if p.cmd == nil || p.cmd.Process == nil {
		return
	}
	_ = p.cmd.Process.Signal(signal)
	select {
	case <-p.ended:
	case <-time.After(20 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// awaitEnd waits until a member has ended by itself.
func (e *ensemble) awaitEnd(name string) {
	e.t.Helper()
	select {
	case <-e.all[name].ended:
	case <-time.After(20 * time.Second):
		e.t.Fatalf("%s still runs", name)
	}
}

func (e *ensemble) tls() *tls.Config {
	e.t.Helper()
	config, err := e.files.Load()
	if err != nil {
		e.t.Fatal(err)
	}
	return config
}

// open connects by way of some members, by name.
func (e *ensemble) open(names ...string) *Client {
	e.t.Helper()
	config := Config{TLS: e.tls(), Run: "test", Label: e.label}
	for _, name := range names {
		config.Endpoints = append(config.Endpoints, e.all[name].client)
	}
	var c *Client
	eventually(e.t, time.Minute, func() (err error) {
		c, err = Open(e.t.Context(), config)
		return err
	})
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

// plain is etcd's own client of all members there will ever be.
func (e *ensemble) plain(names ...string) *clientv3.Client {
	e.t.Helper()
	config := clientv3.Config{TLS: e.tls(), Logger: zap.NewNop()}
	for _, name := range names {
		config.Endpoints = append(config.Endpoints, e.all[name].client)
	}
	c, err := clientv3.New(config)
	if err != nil {
		e.t.Fatal(err)
	}
	e.t.Cleanup(func() { _ = c.Close() })
	return c
}

func eventually(t *testing.T, limit time.Duration, fn func() error) {
	t.Helper()
	deadline := time.Now().Add(limit)
	for {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %v", limit, err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}

// drive brings steps to their proof one after another, each twice: what has been done does no harm, nor does it change anything.
func drive(t *testing.T, steps ...engine.Step) {
	t.Helper()
	for _, s := range steps {
		if err := engine.Drive(t.Context(), s); err != nil {
			t.Fatalf("%s: %v", s.ID(), err)
		}
		if state, err := s.State(t.Context()); err != nil || state != engine.Done {
			t.Fatalf("%s is %s, once it was done: %v", s.ID(), state, err)
		}
		if err := s.Do(t.Context()); err != nil {
			t.Fatalf("%s, once more: %v", s.ID(), err)
		}
	}
}

func look(t *testing.T, c *Client) *Cluster {
	t.Helper()
	cluster, err := c.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// shape is what changes of members change.
func shape(c *Cluster) string {
	var text []string
	for _, m := range c.Members {
		text = append(text, fmt.Sprintf("%x %s %v learner=%v", m.ID, m.Name, m.PeerURLs, m.Learner))
	}
	return strings.Join(text, "\n")
}
