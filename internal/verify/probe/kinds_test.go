package probe

import (
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func TestConnectFailures(t *testing.T) {
	tests := []struct {
		name, address string
		want          Class
	}{
		{"good", lineServer(t, func(net.Conn) {}), ""},
		{"refused", closedAddress(t), ConnectRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantClass(t, doOnce(t, Target{Name: "t", Kind: TCP, Address: tt.address}), tt.want)
		})
	}
}

func TestDatagramFailures(t *testing.T) {
	same := func(sent []byte) [][]byte { return [][]byte{sent} }
	var refused string // a port that no process listens on any more
	if conn, err := net.ListenPacket("udp", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	} else {
		refused = conn.LocalAddr().String()
		_ = conn.Close()
	}
	tests := []struct {
		name, address string
		want          Class
	}{
		{"good", udpServer(t, same), ""},
		{"late echo of another before", udpServer(t, func(sent []byte) [][]byte { return [][]byte{[]byte("17"), sent} }), ""},
		{"another echo only", udpServer(t, func([]byte) [][]byte { return [][]byte{[]byte("17")} }), BadAnswer},
		{"no echo", udpServer(t, func([]byte) [][]byte { return nil }), Timeout},
		{"refused", refused, ConnectRefused},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			target := Target{Name: "t", Kind: UDP, Address: tt.address, Timeout: Duration(300 * time.Millisecond)}
			wantClass(t, doOnce(t, target), tt.want)
		})
	}
}

// TestDatagramIsSentOnce: one that is lost is a loss, and the next comes from another socket with
// another number.
func TestDatagramIsSentOnce(t *testing.T) {
	var mu sync.Mutex
	var seen []string
	address := udpServer(t, func(sent []byte) [][]byte {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, string(sent))
		if len(seen) == 1 {
			return nil
		}
		return [][]byte{sent}
	})
	c, stop := probe(t, Target{Name: "t", Kind: UDP, Address: address, Rate: 20, Timeout: Duration(200 * time.Millisecond)})
	c.await(t, "a good second", 0, allGood)
	stats, err := stop().Stats()
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if stats.Failed != 1 || stats.Errors[Timeout] != 1 || stats.Sent != len(seen) {
		t.Errorf("%d datagrams came: %+v", len(seen), stats)
	}
	numbers := map[string]bool{}
	for _, number := range seen {
		if numbers[number] {
			t.Errorf("number %s was sent twice", number)
		}
		numbers[number] = true
	}
}

func TestTLS(t *testing.T) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(identify))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS() // for 127.0.0.1 and example.com
	t.Cleanup(server.Close)
	plain := hello(t)
	address := server.Listener.Addr().String()
	authority := filepath.Join(t.TempDir(), "ca.crt")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	if err := os.WriteFile(authority, block, 0o600); err != nil {
		t.Fatal(err)
	}
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		target Target
		want   Class
	}{
		{"the system does not know the authority", Target{Address: address}, BadCertificate},
		{"known authority", Target{Address: address, CAFile: authority, ExpectClientAddress: "127.0.0.1"}, ""},
		{"another host", Target{Address: "localhost:" + port, CAFile: authority}, BadCertificate},
		{"believed", Target{Address: "localhost:" + port, InsecureSkipVerify: true}, ""},
		{"speaks no TLS", Target{Address: plain, InsecureSkipVerify: true}, BadAnswer},
		{"no such file", Target{Address: address, CAFile: authority + ".none"}, Other},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.target.Name, tt.target.Kind, tt.target.TLS = "t", HTTP, true
			wantClass(t, doOnce(t, tt.target), tt.want)
		})
	}
}

func TestURL(t *testing.T) {
	for want, target := range map[string]Target{
		"http://a/":        {Address: "a:80", Path: "/"},
		"http://a:8080/":   {Address: "a:8080", Path: "/"},
		"http://a:443/":    {Address: "a:443", Path: "/"},
		"https://a/b":      {Address: "a:443", Path: "/b", TLS: true},
		"https://[::1]:80": {Address: "[::1]:80", TLS: true},
	} {
		if got := target.url(); got != want {
			t.Errorf("%+v: %s, want %s", target, got, want)
		}
	}
}

// TestLookUpWantsBothAnswers: the question for AAAA may be answered by nothing, but not by no
// answer at all.
func TestLookUpWantsBothAnswers(t *testing.T) {
	tests := []struct {
		name string
		six  func(*dnsmessage.Message) bool
		want Class
	}{
		{"only A", func(*dnsmessage.Message) bool { return true }, ""},
		{"AAAA is never answered", func(*dnsmessage.Message) bool { return false }, DNSTimeout},
		{"AAAA cannot be answered", func(m *dnsmessage.Message) bool { m.RCode = dnsmessage.RCodeServerFailure; return true }, DNSServFail},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := dnsServerThat(t, func(query []byte) []byte {
				var m dnsmessage.Message
				if err := m.Unpack(query); err != nil || m.Questions[0].Type != dnsmessage.TypeAAAA {
					return answerDNS(query)
				}
				m.Response, m.Additionals = true, nil
				if !tt.six(&m) {
					return nil
				}
				answer, err := m.Pack()
				if err != nil {
					t.Error(err)
				}
				return answer
			})
			target := Target{Name: "t", Kind: DNS, Address: "good.test.", Resolver: server, Timeout: Duration(500 * time.Millisecond)}
			wantClass(t, doOnce(t, target), tt.want)
			target.Kind, target.Address = TCP, "good.test:1" // who only connects takes what there is
			if err := doOnce(t, target); asClass(err) == DNSServFail {
				t.Errorf("a connection failed for want of an AAAA: %v", err)
			}
		})
	}
}

func asClass(err error) Class {
	if err == nil {
		return ""
	}
	return asFailure(err).Class
}

// TestHooks: each failure and each socket is reported, beside windows that say the same.
func TestHooks(t *testing.T) {
	t.Parallel()
	name := dnsServer(t)
	udp := udpServer(t, func(sent []byte) [][]byte { return [][]byte{sent} })
	line := lineServer(t, func(conn net.Conn) { echoLines(conn, "") })
	web := hello(t)
	config, err := Config{Targets: []Target{
		{Name: "refused", Kind: TCP, Address: closedAddress(t), Rate: 50},
		{Name: "web", Kind: HTTP, Address: web, Rate: 50},
		{Name: "line", Kind: Stream, Address: line, Rate: 50},
		{Name: "udp", Kind: UDP, Address: udp, Rate: 50},
		{Name: "name", Kind: DNS, Address: "good.test.", Resolver: name, Rate: 50},
	}}.Resolve("")
	if err != nil {
		t.Fatal(err)
	}
	accounts := map[string]*Account{}
	ended := errors.New("seen enough")
	p := New(config, func(w Interval) error {
		if accounts[w.Target] == nil {
			accounts[w.Target] = &Account{}
		}
		if err := accounts[w.Target].Add(w); err != nil {
			return err
		}
		if w.Target == "name" && w.Seq == 1 {
			return ended
		}
		return nil
	})
	var failed atomic.Int32
	p.OnFailure = func(target string, scheduled time.Time, failure *Failure) {
		failed.Add(1)
		if target != "refused" || failure.Class != ConnectRefused || scheduled.IsZero() {
			t.Errorf("%s failed: %v", target, failure)
		}
	}
	var mu sync.Mutex
	opened := map[string]map[netip.AddrPort]bool{}
	p.OnConnect = func(network string, local, remote netip.AddrPort) {
		mu.Lock()
		defer mu.Unlock()
		to := network + " " + remote.String()
		if opened[to] == nil {
			opened[to] = map[netip.AddrPort]bool{}
		}
		opened[to][local] = true
	}
	if err := p.Run(t.Context()); !errors.Is(err, ended) {
		t.Fatal(err)
	}
	counted := accounts["refused"].Stats()
	if n := int(failed.Load()); n < counted.Failed || n == 0 || counted.OK > 0 {
		t.Errorf("%d failures reported: %+v", n, counted)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(opened) != 4 || len(opened["tcp "+line]) != 1 {
		t.Errorf("opened to %v", opened)
	}
	for target, to := range map[string]string{"web": "tcp " + web, "udp": "udp " + udp, "name": "udp " + name} {
		// Each has a port of its own, although the kernel may give one a second time.
		if ports, ok := len(opened[to]), accounts[target].Stats().OK; ports < ok/2 || ok == 0 {
			t.Errorf("%s: %d ports for %d good answers", target, ports, ok)
		}
	}
}

// udpServer answers each datagram by those that answers returns.
func udpServer(t *testing.T, answers func(sent []byte) [][]byte) string {
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			for _, answer := range answers(buffer[:n]) {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}
