package records

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// bind is three servers of BIND on the loopback: the primary of example.test, a secondary that follows it, and a recursive
// server that remembers answers.
type bind struct {
	// port is that of the zone's servers at the addresses that the zone has for them.
	port                         string
	primary, secondary, resolver string
	key                          *Key
}

const (
	keyFile = `key "replumb" { algorithm hmac-sha256; secret "` + secret + `"; };`

	zoneFile = `$TTL 60
@ IN SOA ns1.example.test. root.example.test. 1 1 1 3600 1
@ IN NS ns1.example.test.
@ IN NS ns2.example.test.
ns1 IN A 127.0.0.2
ns2 IN A 127.0.0.3
api 3 IN A 192.0.2.1
api 3 IN A 192.0.2.2
naive 3 IN A 192.0.2.1
www 60 IN CNAME api
locked 60 IN A 192.0.2.1
alias.sub 3 IN CNAME old.example.net.
`
)

// startBind runs BIND until the test ends.
func startBind(t *testing.T) *bind {
	t.Helper()
	program := named(t)
	ports := []string{freePort(t, "127.0.0.1"), freePort(t, "127.0.0.1"), freePort(t, "127.0.0.1")}
	b := &bind{primary: "127.0.0.1:" + ports[0], secondary: "127.0.0.1:" + ports[1], resolver: "127.0.0.1:" + ports[2]}
	var err error
	if b.key, err = ParseKey(keyFile); err != nil {
		t.Fatal(err)
	}
	options := func(port, more string) string {
		return fmt.Sprintf(`options {
	directory "."; pid-file none; session-keyfile none; lock-file none;
	listen-on port %s { 127.0.0.1; }; listen-on-v6 { none; };
	dnssec-validation no; notify-delay 0; %s
};
controls { };
`, port, more)
	}
	b.run(t, program, b.primary, map[string]string{
		"example.test": zoneFile,
		"named.conf": keyFile + options(ports[0], "recursion no; serial-query-rate 1000;") + fmt.Sprintf(`
zone "example.test" {
	type primary; file "example.test"; notify explicit; also-notify { 127.0.0.1 port %s; };
	update-policy {
		grant replumb name api.example.test. A; grant replumb name naive.example.test. A;
		grant replumb name www.example.test. A CNAME;
		grant replumb subdomain sub.example.test. ANY;
	};
};`, ports[1]),
	})
	b.run(t, program, b.secondary, map[string]string{
		"named.conf": options(
			ports[1],
			"recursion no; min-refresh-time 1; max-refresh-time 1; min-retry-time 1; max-retry-time 1;",
		) + fmt.Sprintf(
			`zone "example.test" { type secondary; file "example.test"; primaries { 127.0.0.1 port %s; }; };`,
			ports[0],
		),
	})
	b.run(t, program, b.resolver, map[string]string{
		"named.conf": options(ports[2], "recursion yes; max-ncache-ttl 1; servfail-ttl 0;") + fmt.Sprintf(
			`zone "example.test" { type forward; forward only; forwarders { 127.0.0.1 port %s; }; };`, ports[1]),
	})
	// named listens at addresses of interfaces only, and the loopback has but one: what asks the others is passed on.
	b.port = freePort(t, "127.0.0.2", "127.0.0.3")
	pass(t, "127.0.0.2", b.port, b.primary)
	pass(t, "127.0.0.3", b.port, b.secondary)
	return b
}

// pass hands every message on to another server.
func pass(t *testing.T, address, port, to string) {
	serve(t, address, port, nil, func(w dns.ResponseWriter, r *dns.Msg) {
		c := &dns.Client{Net: "tcp", Timeout: time.Second}
		if answer, _, err := c.Exchange(r, to); err == nil {
			_ = w.WriteMsg(answer)
		}
	})
}

// named is a copy of the program: distributions confine the one that they install to directories of its own.
func named(t *testing.T) string {
	t.Helper()
	for _, at := range []string{"/usr/sbin/named", "/usr/local/sbin/named", "/sbin/named"} {
		if in, err := os.Open(at); err == nil {
			defer func() { _ = in.Close() }()
			path := filepath.Join(t.TempDir(), "named")
			out, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
			if err == nil {
				_, err = io.Copy(out, in)
			}
			if err == nil {
				err = out.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
	}
	t.Fatal("BIND's named is not installed, and without it nothing is proven here: run hack/deps.sh (make deps), or apt-get install bind9")
	return ""
}

// run starts one server and waits until it has the zone, or knows who does.
func (b *bind) run(t *testing.T, program, at string, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	cmd := exec.Command(program, "-g", "-n", "1", "-c", "named.conf")
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // nothing stays behind when the test is killed
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("%s said:\n%s", at, tail(log.String()))
		}
	})
	c := &Client{Timeout: time.Second}
	for deadline := time.Now().Add(20 * time.Second); ; {
		if r, err := c.query(t.Context(), at, "ns1.example.test.", dns.TypeA, at == b.resolver); err == nil && len(r.Answer) > 0 {
			return
		}
		select {
		case <-ended:
			t.Fatalf("named at %s has ended", at)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("named at %s has no answer", at)
		}
	}
}

func tail(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-25):], "\n")
}

func (b *bind) client() *Client { return &Client{Port: b.port, Recursive: []string{b.resolver}} }

func (b *bind) provider() *Dynamic {
	return &Dynamic{Server: b.primary, Zone: "example.test", Key: b.key, Client: b.client()}
}
