// Package dnstest runs real name servers for tests: BIND as primary, secondary and resolver of the
// zone example.test, on the loopback.
package dnstest

import (
	"bytes"
	"context"
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

// Secret of the key replumb, which the primary takes updates by, and KeyFile as tsig-keygen writes
// it.
const (
	Secret  = "c2VjcmV0IG9mIGEgdGVzdA=="
	KeyFile = `key "replumb" { algorithm hmac-sha256; secret "` + Secret + `"; };`
)

// Name of the zone.
const Name = "example.test"

const head = `$TTL 60
@ IN SOA ns1.example.test. root.example.test. 1 1 1 3600 1
@ IN NS ns1.example.test.
@ IN NS ns2.example.test.
ns1 IN A 127.0.0.2
ns2 IN A 127.0.0.3
`

// Zone is what is in the zone, and who may change it.
type Zone struct {
	// Records as in a zone file. Those of the zone itself, and of its servers, are there already.
	Records string
	// Policy is BIND's update-policy.
	Policy string
	// Lags has the secondary keep what the zone was at the beginning.
	Lags bool
}

// Servers are host:port of the three.
type Servers struct {
	Primary, Secondary, Resolver string
	// Port is that of the zone's servers at the addresses that the zone has for them.
	Port string
}

// Start runs BIND until the test ends.
func Start(t testing.TB, z Zone) *Servers {
	t.Helper()
	program := named(t)
	ports := []string{FreePort(t, "127.0.0.1"), FreePort(t, "127.0.0.1"), FreePort(t, "127.0.0.1")}
	s := &Servers{Primary: "127.0.0.1:" + ports[0], Secondary: "127.0.0.1:" + ports[1], Resolver: "127.0.0.1:" + ports[2]}
	s.run(t, program, s.Primary, map[string]string{
		Name: head + z.Records,
		"named.conf": KeyFile + options(ports[0], "recursion no; serial-query-rate 1000;") + fmt.Sprintf(`
zone "example.test" {
	type primary; file "example.test"; notify explicit; also-notify { 127.0.0.1 port %s; };
	update-policy { %s };
};`, ports[1], z.Policy),
	})
	second := fmt.Sprintf(`zone "example.test" { type secondary; file "example.test"; primaries { 127.0.0.1 port %s; }; };`, ports[0])
	files := map[string]string{}
	if z.Lags {
		second = `zone "example.test" { type primary; file "example.test"; };`
		files[Name] = head + z.Records
	}
	const eager = "recursion no; min-refresh-time 1; max-refresh-time 1; min-retry-time 1; max-retry-time 1;"
	files["named.conf"] = options(ports[1], eager) + second
	s.run(t, program, s.Secondary, files)
	s.run(t, program, s.Resolver, map[string]string{
		"named.conf": options(ports[2], "recursion yes; max-ncache-ttl 1; servfail-ttl 0;") + fmt.Sprintf(
			`zone "example.test" { type forward; forward only; forwarders { 127.0.0.1 port %s; }; };`, ports[1]),
	})
	// named listens at addresses of interfaces only, and the loopback has but one: what asks the
	// others is passed on.
	s.Port = FreePort(t, "127.0.0.2", "127.0.0.3")
	pass(t, "127.0.0.2", s.Port, s.Primary)
	pass(t, "127.0.0.3", s.Port, s.Secondary)
	return s
}

func options(port, more string) string {
	return fmt.Sprintf(`options {
	directory "."; pid-file none; session-keyfile none; lock-file none;
	listen-on port %s { 127.0.0.1; }; listen-on-v6 { none; };
	dnssec-validation no; notify-delay 0; %s
};
controls { };
`, port, more)
}

// pass hands every message on to another server.
func pass(t testing.TB, address, port, to string) {
	Serve(t, address, port, nil, func(w dns.ResponseWriter, r *dns.Msg) {
		c := &dns.Client{Net: "tcp", Timeout: time.Second}
		if answer, _, err := c.Exchange(r, to); err == nil {
			_ = w.WriteMsg(answer)
		}
	})
}

// named is a copy of the program: distributions confine the one that they install to directories of
// its own.
func named(t testing.TB) string {
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
func (s *Servers) run(t testing.TB, program, at string, files map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var log bytes.Buffer
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "-g", "-n", "1", "-c", "named.conf")
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
	c := &dns.Client{Net: "tcp", Timeout: time.Second}
	for deadline := time.Now().Add(20 * time.Second); ; {
		m := new(dns.Msg).SetQuestion("ns1.example.test.", dns.TypeA)
		if r, _, err := c.ExchangeContext(t.Context(), m, at); err == nil && len(r.Answer) > 0 {
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
