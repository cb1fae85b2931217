//go:build apiserver && long

package etcd

import (
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/replumb/replumb/internal/engine"
	"github.com/replumb/replumb/internal/testing/etcdtest"
)

// ensemble is members of an etcd that are real processes, with certificates for everything.
type ensemble struct {
	t      *testing.T
	dir    string
	ca     *etcdtest.Authority
	files  Files
	flags  []string
	subnet net.IP
	label  string
	last   atomic.Int32
	mu     sync.Mutex
	all    map[string]*etcdtest.Member
}

// newEnsemble makes certificates and starts so many members: m1, m2 and so on. All of them end with
// the test.
func newEnsemble(t *testing.T, members int, flags ...string) *ensemble {
	t.Helper()
	e := &ensemble{t: t, dir: t.TempDir(), flags: flags, all: map[string]*etcdtest.Member{}, subnet: etcdtest.Subnet(t.Name())}
	var err error
	if e.ca, err = etcdtest.NewAuthority(e.dir); err != nil {
		t.Fatal(err)
	}
	e.files = Files(e.ca.Clients)
	t.Cleanup(func() {
		for name, m := range e.all {
			m.Kill()
			if t.Failed() {
				t.Logf("%s:\n%s", name, m.Tail())
			}
		}
	})
	var first []*etcdtest.Member
	for i := range members {
		first = append(first, e.place(fmt.Sprintf("m%d", i+1)))
	}
	for _, m := range first {
		m.InitialCluster = etcdtest.InitialCluster(first...)
		e.start(m.Name, "--initial-cluster-state=new")
	}
	return e
}

// place gives a member an address, ports, a certificate and a data folder, without starting it.
func (e *ensemble) place(name string) *etcdtest.Member {
	e.t.Helper()
	at := net.IPv4(e.subnet[0], e.subnet[1], e.subnet[2], byte(e.last.Add(1)))
	cert, err := e.ca.Issue(fmt.Sprintf("%s-%s", name, at), at)
	if err != nil {
		e.t.Fatal(err)
	}
	m := &etcdtest.Member{
		Name: name, Dir: filepath.Join(e.dir, name), Cert: cert, Peer: "https://" + e.free(at), Client: "https://" + e.free(at),
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.all[name] = m
	return m
}

func (e *ensemble) free(at net.IP) string {
	l, err := (&net.ListenConfig{}).Listen(e.t.Context(), "tcp", net.JoinHostPort(at.String(), "0"))
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func (e *ensemble) start(name string, flags ...string) {
	e.t.Helper()
	if err := e.all[name].Start(append(flags, e.flags...)...); err != nil {
		e.t.Fatal(err)
	}
}

// kill ends a member as a power cut would, stop as kubelet would.
func (e *ensemble) kill(name string) { e.all[name].Kill() }
func (e *ensemble) stop(name string) { e.all[name].Stop() }

// awaitEnd waits until a member has ended by itself.
func (e *ensemble) awaitEnd(name string) {
	e.t.Helper()
	if err := e.all[name].AwaitEnd(); err != nil {
		e.t.Fatal(err)
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
		config.Endpoints = append(config.Endpoints, e.all[name].Client)
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
	config := clientv3.Config{TLS: e.tls()}
	for _, name := range names {
		config.Endpoints = append(config.Endpoints, e.all[name].Client)
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

// drive brings steps to their proof one after another, each twice: what has been done does no harm,
// nor does it change anything.
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

func look(t *testing.T, c *Client) *Membership {
	t.Helper()
	cluster, err := c.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

// shape is what changes of members change.
func shape(c *Membership) string {
	var text []string
	for _, m := range c.Members {
		text = append(text, fmt.Sprintf("%x %s %v learner=%v", m.ID, m.Name, m.PeerURLs, m.Learner))
	}
	return strings.Join(text, "\n")
}
