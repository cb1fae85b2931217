package probe

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"
)

// doOnce sends one request the way a prober does.
func doOnce(t *testing.T, target Target) error {
	t.Helper()
	target = target.withDefaults("")
	if err := target.validate(); err != nil {
		t.Fatal(err)
	}
	requester := newRequester(target, hooks{})
	defer requester.close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(target.Timeout))
	defer cancel()
	return requester.do(ctx)
}

func wantClass(t *testing.T, err error, want Class) {
	t.Helper()
	if err == nil {
		if want != "" {
			t.Errorf("no error, want %s", want)
		}
		return
	}
	if got := asFailure(err).Class; got != want {
		t.Errorf("class = %s (%v), want %q", got, err, want)
	}
}

func identify(w http.ResponseWriter, r *http.Request) {
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	_ = json.NewEncoder(w).Encode(EchoIdentity{Name: "test", Client: host})
}

// httpServer can be frozen, so that requests hang, and stopped, so that they are refused.
type httpServer struct {
	mu     sync.Mutex
	thawed chan struct{}
	server *http.Server
	at     string
}

func newHTTPServer(t *testing.T) *httpServer {
	s := &httpServer{thawed: make(chan struct{}), at: "127.0.0.1:0"}
	close(s.thawed)
	s.start(t)
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *httpServer) start(t *testing.T) {
	t.Helper()
	listener, err := net.Listen("tcp", s.at)
	if err != nil {
		t.Fatal(err)
	}
	s.at = listener.Addr().String()
	s.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		thawed := s.thawed
		s.mu.Unlock()
		<-thawed
		identify(w, r)
	})}
	go func() { _ = s.server.Serve(listener) }()
}

func (s *httpServer) address() string { return s.at }
func (s *httpServer) stop()           { _ = s.server.Close() }
func (s *httpServer) thaw()           { close(s.thawed) }

func (s *httpServer) freeze() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.thawed = make(chan struct{})
}

func hello(t *testing.T) string {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "hello") }))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func closedAddress(t *testing.T) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func lineServer(t *testing.T, handle func(net.Conn)) string {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer func() { _ = conn.Close() }(); handle(conn) }()
		}
	}()
	return listener.Addr().String()
}

func echoLines(conn net.Conn, client string) {
	lines := bufio.NewScanner(conn)
	for lines.Scan() {
		if lines.Text() == IdentityRequest {
			_, _ = fmt.Fprintf(conn, "{\"client\":%q}\n", client)
			continue
		}
		_, _ = fmt.Fprintln(conn, lines.Text())
	}
}

// dnsServer answers by the first label of the question: good, gone, broken; to anything else not at
// all.
func dnsServer(t *testing.T) string { return dnsServerThat(t, answerDNS) }

func dnsServerThat(t *testing.T, answers func(query []byte) []byte) string {
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
			if answer := answers(buffer[:n]); answer != nil {
				_, _ = conn.WriteTo(answer, from)
			}
		}
	}()
	return conn.LocalAddr().String()
}

func answerDNS(query []byte) []byte {
	var message dnsmessage.Message
	if err := message.Unpack(query); err != nil {
		return nil
	}
	question := message.Questions[0]
	message.Response, message.Authoritative, message.Additionals = true, true, nil
	switch label, _, _ := strings.Cut(question.Name.String(), "."); label {
	case "good":
		if question.Type == dnsmessage.TypeA {
			message.Answers = []dnsmessage.Resource{{
				Header: dnsmessage.ResourceHeader{Name: question.Name, Class: question.Class, TTL: 5},
				Body:   &dnsmessage.AResource{A: [4]byte{127, 0, 0, 1}},
			}}
		}
	case "gone":
		message.RCode = dnsmessage.RCodeNameError
	case "broken":
		message.RCode = dnsmessage.RCodeServerFailure
	case "half-broken": // no IPv6 address, and trouble with those of IPv4
		if question.Type == dnsmessage.TypeA {
			message.RCode = dnsmessage.RCodeServerFailure
		}
	case "half-silent":
		if question.Type == dnsmessage.TypeA {
			return nil
		}
	default:
		return nil
	}
	answer, err := message.Pack()
	if err != nil {
		return nil
	}
	return answer
}
