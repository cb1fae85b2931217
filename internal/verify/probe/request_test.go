package probe

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

func allGood(w Interval) bool { return w.OK > 0 && w.Failed == 0 }

// TestProberSeesLosses is the control of every claim made with this package: the same prober
// reports nothing while nothing is lost, and each kind of loss when it happens.
func TestProberSeesLosses(t *testing.T) {
	t.Parallel()
	server := newHTTPServer(t)
	c, stop := probe(t, Target{
		Name: "t", Kind: HTTP, Address: server.address(), Rate: 50, Timeout: Duration(400 * time.Millisecond),
		ExpectClientAddress: "127.0.0.1",
	})
	n := c.await(t, "a good second", 1, allGood)
	server.freeze()
	n = c.await(t, "time-outs of a frozen server", n, func(w Interval) bool { return w.Errors[Timeout] > 0 })
	server.thaw()
	n = c.await(t, "a good second after the thaw", n, allGood)
	server.stop()
	n = c.await(t, "refused connections", n, func(w Interval) bool { return w.Errors[ConnectRefused] > 0 && w.OK == 0 })
	server.start(t)
	c.await(t, "a good second after the restart", n, allGood)

	series := stop()
	losses := series.Losses()
	if len(losses) != 2 {
		t.Fatalf("losses = %+v, want 2", losses)
	}
	stats, err := series.Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.LongestGap < time.Second {
		t.Errorf("longest gap = %v", stats.LongestGap)
	}
	if before, err := series[:1].Stats(); err != nil || before.Failed != 0 {
		t.Errorf("failures before anything was broken: %+v, %v", before, err)
	}
}

func TestGetFailures(t *testing.T) {
	closed := closedAddress(t)
	status := httptest.NewServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusServiceUnavailable) }),
	)
	t.Cleanup(status.Close)
	hangUp := lineServer(t, func(net.Conn) {})
	echo := httptest.NewServer(http.HandlerFunc(identify))
	t.Cleanup(echo.Close)
	tests := []struct {
		name   string
		target Target
		want   Class
	}{
		{"good", Target{Address: echo.Listener.Addr().String(), ExpectClientAddress: "127.0.0.1"}, ""},
		{"source translated", Target{Address: echo.Listener.Addr().String(), ExpectClientAddress: "10.0.0.9"}, WrongClient},
		{"right server", Target{Address: echo.Listener.Addr().String(), ExpectServer: "test"}, ""},
		{"another server", Target{Address: echo.Listener.Addr().String(), ExpectServer: "cart"}, WrongServer},
		{"no echo server", Target{Address: hello(t), ExpectClientAddress: "127.0.0.1"}, BadAnswer},
		{"refused", Target{Address: closed}, ConnectRefused},
		{"status", Target{Address: status.Listener.Addr().String()}, HTTPStatus},
		{"hangs up", Target{Address: hangUp}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.target.Kind, tt.target.Name = HTTP, "t"
			err := doOnce(t, tt.target)
			if tt.name == "hangs up" {
				if class := asFailure(err).Class; class != Closed && class != Reset {
					t.Errorf("class = %v (%v)", class, err)
				}
				return
			}
			wantClass(t, err, tt.want)
		})
	}
}

func TestLookupFailures(t *testing.T) {
	server := dnsServer(t)
	tests := []struct {
		host string
		want Class
	}{
		{"good.test.", ""},
		{"gone.test.", DNSNotFound},
		{"broken.test.", DNSServFail},
		{"silent.test.", DNSTimeout},
		{"half-broken.test.", DNSServFail},
		{"half-silent.test.", DNSTimeout},
	}
	for _, tt := range tests {
		t.Run(tt.host, func(t *testing.T) {
			target := Target{
				Name: "t", Kind: DNS, Address: tt.host, Resolver: server, Timeout: Duration(300 * time.Millisecond),
			}
			wantClass(t, doOnce(t, target), tt.want)
		})
		if tt.want == "" {
			continue // an HTTP request that finds its server is tested by address
		}
		t.Run("http "+tt.host, func(t *testing.T) {
			target := Target{
				Name: "t", Kind: HTTP, Address: net.JoinHostPort(tt.host, "80"), Resolver: server,
				Timeout: Duration(300 * time.Millisecond),
			}
			wantClass(t, doOnce(t, target), tt.want)
		})
	}
}

// TestNotFoundIsNotUnanswered: of a question without an answer, Go's resolver says that there is no
// such name if the one beside it was answered first. When it gives up is up to resolv.conf.
func TestNotFoundIsNotUnanswered(t *testing.T) {
	for name, tt := range map[string]struct {
		server string
		want   Class
	}{
		"answered": {dnsServer(t), DNSNotFound},
		"silent":   {udpServer(t, func([]byte) [][]byte { return nil }), DNSTimeout},
		"refused":  {closedAddress(t), DNSServFail},
	} {
		t.Run(name, func(t *testing.T) {
			conn, err := net.Dial("udp", tt.server)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = conn.Close() }()
			var asked questions
			watched := asked.watch(conn)
			question := dnsmessage.Message{Questions: []dnsmessage.Question{{
				Name: dnsmessage.MustNewName("good.test."), Type: dnsmessage.TypeAAAA, Class: dnsmessage.ClassINET,
			}}}
			sent, err := question.Pack()
			if err != nil {
				t.Fatal(err)
			}
			_, _ = watched.Write(sent)
			_ = watched.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
			_, _ = watched.Read(make([]byte, 512))
			wantClass(t, asked.explain(&net.DNSError{Err: "no such host", Name: "good.test.", IsNotFound: true}), tt.want)
		})
	}
}

// TestLostDatagram has a name server never answer the first question: that is one request lost, not
// those beside it.
func TestLostDatagram(t *testing.T) {
	var asked atomic.Int32
	server := dnsServerThat(t, func(query []byte) []byte {
		if asked.Add(1) <= 2 { // A and AAAA
			return nil
		}
		return answerDNS(query)
	})
	target := Target{Name: "t", Kind: DNS, Address: "good.test.", Resolver: server}
	requester := newRequester(target, hooks{})
	first, cancel := context.WithCancel(t.Context())
	defer cancel()
	lost := make(chan error, 1)
	go func() { lost <- requester.do(first) }()
	for asked.Load() < 2 {
		runtime.Gosched()
	}
	within, cancelWithin := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancelWithin()
	if err := requester.do(within); err != nil {
		t.Errorf("a look-up beside one whose datagram was lost: %v", err)
	}
	cancel()
	if err := <-lost; err == nil {
		t.Error("the look-up that was never answered succeeded")
	}
}

func TestStreamReconnects(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var down bool
	var open net.Conn
	setDown := func(value bool) {
		mu.Lock()
		defer mu.Unlock()
		down = value
		_ = open.Close()
	}
	address := lineServer(t, func(conn net.Conn) {
		mu.Lock()
		open = conn
		refuse := down
		mu.Unlock()
		if !refuse {
			echoLines(conn, "127.0.0.1")
		}
	})
	c, stop := probe(t, Target{
		Name: "t", Kind: Stream, Address: address, Rate: 50, ExpectClientAddress: "127.0.0.1",
	})
	n := c.await(t, "a good second", 1, allGood)
	setDown(true)
	n = c.await(t, "failures while the stream cannot be opened", n, func(w Interval) bool { return w.Failed > 0 && w.OK == 0 })
	setDown(false)
	c.await(t, "a good second after it was opened again", n, allGood)
	stats, err := stop().Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.Failed == 0 || stats.Reconnects != 1 {
		t.Errorf("a broken stream left no trace: %+v", stats)
	}
}

// TestStreamGoodbye has a server say goodbye with lines under way again and again: nothing is lost,
// nothing broke.
func TestStreamGoodbye(t *testing.T) {
	t.Parallel()
	var goodbyes atomic.Int32
	address := lineServer(t, func(conn net.Conn) {
		lines := bufio.NewScanner(conn)
		for n := 0; lines.Scan(); n++ {
			if n == 10 {
				goodbyes.Add(1)
				_, _ = fmt.Fprintln(conn, Goodbye)
			}
			_, _ = fmt.Fprintln(conn, lines.Text())
		}
	})
	c, stop := probe(t, Target{Name: "t", Kind: Stream, Address: address, Rate: 200})
	c.await(t, "a good second", 1, allGood)
	stats, err := stop().Stats()
	if err != nil {
		t.Fatal(err)
	}
	if stats.OK == 0 || stats.Failed > 0 || stats.Reconnects > 0 || goodbyes.Load() < 5 {
		t.Errorf("after %d goodbyes: %+v", goodbyes.Load(), stats)
	}
}

func TestStreamFailures(t *testing.T) {
	silent := lineServer(t, func(conn net.Conn) { _, _ = io.Copy(io.Discard, conn) })
	translated := lineServer(t, func(conn net.Conn) { echoLines(conn, "10.0.0.9") })
	tests := []struct {
		name    string
		address string
		client  string
		server  string
		want    Class
	}{
		{"refused", closedAddress(t), "", "", ConnectRefused},
		{"no echo", silent, "", "", Timeout},
		{"source translated", translated, "127.0.0.1", "", WrongClient},
		{"another server", translated, "", "cart", WrongServer},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantClass(t, doOnce(t, Target{
				Name: "t", Kind: Stream, Address: tt.address, ExpectClientAddress: tt.client, ExpectServer: tt.server,
				Timeout: Duration(300 * time.Millisecond),
			}), tt.want)
		})
	}
}

func TestConfig(t *testing.T) {
	tests := []struct {
		name, config, want string
	}{
		{"empty", `{}`, "names no targets"},
		{"unknown field", `{"targets":[{"rat":"x"}]}`, "unknown field"},
		{"no name", `{"targets":[{"kind":"http","address":"a:1"}]}`, "name is empty"},
		{"kind", `{"targets":[{"name":"x","kind":"icmp","address":"a:1"}]}`, `kind "icmp"`},
		{"rate", `{"targets":[{"name":"x","kind":"http","address":"a:1","rate":-1}]}`, "rate -1"},
		{"timeout", `{"targets":[{"name":"x","kind":"http","address":"a:1","timeout":"soon"}]}`, "soon"},
		{"port", `{"targets":[{"name":"x","kind":"http","address":"a"}]}`, "not host:port"},
		{"dns", `{"targets":[{"name":"x","kind":"dns","address":"a:53"}]}`, "not a name"},
		{"self unknown", `{"targets":[{"name":"x","kind":"http","address":"a:1","expectClientAddress":"self"}]}`, "not an IP"},
		{"token", `{"targets":[{"name":"x","kind":"http","address":"a:1","tokenFile":"t"}]}`, "tokenFile is for"},
		{"authority", `{"targets":[{"name":"x","kind":"http","address":"a:1","caFile":"t"}]}`, "caFile is for"},
		{"tls", `{"targets":[{"name":"x","kind":"tcp","address":"a:1","tls":true}]}`, "tls is for kind http"},
		{"believe", `{"targets":[{"name":"x","kind":"http","address":"a:1","insecureSkipVerify":true}]}`, "http with tls"},
		{
			"believe and verify",
			`{"targets":[{"name":"x","kind":"http","address":"a:1","tls":true,"insecureSkipVerify":true,"caFile":"t"}]}`,
			"exclude each other",
		},
		{"status of tcp", `{"targets":[{"name":"x","kind":"tcp","address":"a:1","expectStatus":200}]}`, "expectStatus"},
		{"status", `{"targets":[{"name":"x","kind":"http","address":"a:1","expectStatus":20}]}`, "between 100 and 599"},
		{"path of udp", `{"targets":[{"name":"x","kind":"udp","address":"a:1","path":"/"}]}`, "path is not for"},
		{"path", `{"targets":[{"name":"x","kind":"http","address":"a:1","path":"x y"}]}`, "can be asked"},
		{"client of udp", `{"targets":[{"name":"x","kind":"udp","address":"a:1","expectClientAddress":"::1"}]}`, "cannot be checked"},
		{"twice", `{"targets":[{"name":"x","kind":"dns","address":"a"},{"name":"x","kind":"dns","address":"a"}]}`, "used twice"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			config, err := ParseConfig([]byte(tt.config))
			if err == nil {
				_, err = config.Resolve("")
			}
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error = %v, want it to contain %q", err, tt.want)
			}
		})
	}
}
