//go:build apiserver

package etcdrelay

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/client-go/rest"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/replumb/replumb/internal/kube/cluster"
	"github.com/replumb/replumb/internal/kube/etcd"
	"github.com/replumb/replumb/internal/testing/etcdtest"
)

// front is an API server that runs Serve for whoever asks for a process in the pod.
type front struct {
	files   etcd.Files
	address string

	mu   sync.Mutex
	open []context.CancelFunc
	ran  []string
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/prefix/api/v1/namespaces/replumb-system/pods/etcd-relay/exec" {
		http.NotFound(w, r)
		return
	}
	conn := wsstream.NewConn(map[string]wsstream.ChannelProtocolConfig{"v5.channel.k8s.io": {Binary: true, Channels: []wsstream.ChannelType{
		wsstream.ReadChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.WriteChannel, wsstream.IgnoreChannel,
	}}})
	_, streams, err := conn.Open(w, r)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	f.mu.Lock()
	f.open, f.ran = append(f.open, func() { cancel(); _ = conn.Close() }), append(f.ran, strings.Join(r.URL.Query()["command"], " "))
	f.mu.Unlock()
	if err := Serve(ctx, f.files, []string{f.address}, streams[0], streams[1]); err != nil {
		_, _ = fmt.Fprintf(streams[2], "error: %v\n", err)
	}
	_, _ = streams[3].Write([]byte(`{"metadata":{},"status":"Success"}`))
}

// breakOff ends all connections, as an API server does that ends.
func (f *front) breakOff() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, end := range f.open {
		end()
	}
	n := len(f.open)
	f.open = nil
	return n
}

// member is an etcd with certificates for everything, which ends with the test.
func member(t *testing.T) (address string, files etcd.Files) {
	t.Helper()
	dir := t.TempDir()
	ca, err := etcdtest.NewAuthority(dir)
	if err != nil {
		t.Fatal(err)
	}
	at := etcdtest.Subnet(t.Name())
	at[3] = 1
	cert, err := ca.Issue("member", at)
	if err != nil {
		t.Fatal(err)
	}
	m := &etcdtest.Member{
		Name: "cp1", Dir: filepath.Join(dir, "data"), Cert: cert, Peer: "https://" + net.JoinHostPort(at.String(), "2380"), Client: "https://" + net.JoinHostPort(at.String(), "2379"),
	}
	m.InitialCluster = etcdtest.InitialCluster(m)
	if err := m.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Kill)
	return strings.TrimPrefix(m.Client, "https://"), etcd.Files(ca.Clients)
}

// TestThroughExec writes to a real etcd with TLS through processes that are begun by an API server,
// on a side that has neither certificate nor authority. It goes on when all connections break.
func TestThroughExec(t *testing.T) {
	address, files := member(t)
	f := &front{files: files, address: address}
	api := httptest.NewServer(f)
	defer api.Close()
	c, err := cluster.Connect(&rest.Config{Host: api.URL + "/prefix"})
	if err != nil {
		t.Fatal(err)
	}
	r := &Relay{Cluster: c, Migration: "m"}
	open := func() (*etcd.Client, error) {
		return etcd.Open(t.Context(), etcd.Config{Endpoints: []string{"http://127.0.0.1:2379"}, Dial: r.dial(r.Pod("cp1")), Timeout: 10 * time.Second})
	}
	var e *etcd.Client
	eventually(t, func() (err error) { // it has just begun
		e, err = open()
		return err
	})
	defer func() { _ = e.Close() }()
	put := func(value string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err := e.KV().Txn(ctx).Then(clientv3.OpPut("key", value), clientv3.OpPut("large", strings.Repeat("x", 1<<20))).Commit()
		return err
	}
	if err := put("first"); err != nil {
		t.Fatal(err)
	}
	if f.breakOff() == 0 {
		t.Fatal("there was no connection")
	}
	eventually(t, func() error { return put("second") }) // the client finds out, and connects again
	got, err := e.KV().Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 || string(got.Kvs[0].Value) != "second" {
		t.Errorf("etcd has %v, %v", got, err)
	}
	if len(f.ran) < 2 || f.ran[0] != "/replumb node etcd connect" {
		t.Errorf("what ran are %q", f.ran)
	}

	f.files.Key = "/nowhere/client.key"
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "/nowhere/client.key: it cannot be read") {
		t.Errorf("without a key: %v", err)
	}
}

func eventually(t *testing.T, fn func() error) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		err := fn()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
	}
}
