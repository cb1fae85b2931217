package probe

import (
	"bufio"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

func TestWhole(t *testing.T) {
	for _, tt := range []struct {
		name, answer string
		status       int
		body         string
		ok           bool
	}{
		{"usual", "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok", 200, "ok", true},
		{"empty", "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n", 503, "", true},
		{"no reason", "HTTP/1.0 200\r\nContent-Length: 1\r\n\r\nx", 200, "x", true},
		{"more to come", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nok", 0, "", false},
		{"half a head", "HTTP/1.1 200 OK\r\nContent-Le", 0, "", false},
		{"in chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\nok", 0, "", false},
		{"to the end", "HTTP/1.1 200 OK\r\n\r\nok", 0, "", false},
		{"of two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: x\r\n\r\nok", 0, "", false},
		{"not yet", "HTTP/1.1 100 Continue\r\nContent-Length: 0\r\n\r\n", 0, "", false},
		{"folded", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n x\r\n\r\nok", 0, "", false},
		{"another protocol", "SSH-2.0-x\r\nContent-Length: 0\r\n\r\n", 0, "", false},
		{"nothing", "", 0, "", false},
	} {
		status, body, ok := whole([]byte(tt.answer))
		if ok != tt.ok || ok && (status != tt.status || string(body) != tt.body) {
			t.Errorf("%s: %d, %q, %v", tt.name, status, body, ok)
		}
	}
}

// TestLongAndSlowAnswers: what does not come at once, or not as a whole, is read to its end all the
// same.
func TestLongAndSlowAnswers(t *testing.T) {
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		for range 3 {
			_, _ = w.Write([]byte(strings.Repeat("x", answerSize)))
			w.(http.Flusher).Flush()
			<-time.After(5 * prompt)
		}
	}))
	t.Cleanup(slow.Close)
	if err := doOnce(t, Target{Name: "t", Kind: HTTP, Address: slow.Listener.Addr().String()}); err != nil {
		t.Error(err)
	}
	broken := lineServer(t, func(conn net.Conn) {
		_, _ = bufio.NewReader(conn).ReadString('\n') // as much as there is: what is unread would reset the connection
		_, _ = conn.Write([]byte("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"))
	})
	wantClass(t, doOnce(t, Target{Name: "t", Kind: HTTP, Address: broken}), Closed)
}

// TestSlowServersAreLeftToThePoller: what does not answer at once is not waited for in the kernel,
// until it answers at once again.
func TestSlowServersAreLeftToThePoller(t *testing.T) {
	pause := make(chan time.Duration, 1)
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-time.After(<-pause) }))
	t.Cleanup(server.Close)
	target := Target{Name: "t", Kind: HTTP, Address: server.Listener.Addr().String()}.withDefaults("")
	g, ok := newRequester(target, hooks{}).(*get)
	if !ok || g.dialer.plain == nil {
		t.Fatal("no plain connections are made")
	}
	ask := func(d time.Duration) {
		t.Helper()
		pause <- d
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(target.Timeout))
		defer cancel()
		if err := g.do(ctx); err != nil {
			t.Fatal(err)
		}
	}
	ask(20 * prompt)
	if runtime.GOOS == "linux" && !g.dialer.plain.slow.Load() {
		t.Error("a server that takes long is waited for in the kernel")
	}
	for deadline := time.Now().Add(10 * time.Second); g.dialer.plain.slow.Load(); ask(0) {
		if time.Now().After(deadline) {
			t.Fatal("a server that answers at once again is left to the poller")
		}
	}
}

// TestHostThatIsAskedFor: an ingress controller is called at its own address, for a host that it
// serves.
func TestHostThatIsAskedFor(t *testing.T) {
	ingress := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Host != "shop.example" {
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	t.Cleanup(ingress.Close)
	address := ingress.Listener.Addr().String()
	wantClass(t, doOnce(t, Target{Name: "t", Kind: HTTP, Address: address}), HTTPStatus)
	wantClass(t, doOnce(t, Target{Name: "t", Kind: HTTP, Address: address, Host: "shop.example"}), "")
	for _, wrong := range []Target{{Kind: TCP, Host: "shop.example"}, {Kind: HTTP, Host: "shop.example/x"}, {Kind: HTTP, Host: "a\r\nb: c"}} {
		wrong.Name, wrong.Address = "t", address
		if err := wrong.withDefaults("").validate(); err == nil {
			t.Errorf("%+v is taken", wrong)
		}
	}
	for _, tt := range []struct{ host, want string }{{"", "127.0.0.1"}, {"shop.example", "shop.example"}, {"shop.example:8443", "shop.example"}} {
		if got, err := (Target{Address: "127.0.0.1:443", Host: tt.host}).serverName(); err != nil || got != tt.want {
			t.Errorf("the server has to be %q, %v", got, err)
		}
	}
}
